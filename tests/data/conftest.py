"""A tiny dataset in every layout that CIFAR is published in, with its own checksums."""

import hashlib
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedssl.data.standard.cifar import Batch, CifarSpec

STEMS = {"data_batch_1": "train", "data_batch_2": "train", "test_batch": "test"}
EACH = 4  # images a file


class FakeCifar:
    """`coarse`: as CIFAR-100, with two labels an image."""

    def __init__(self, coarse: bool = False) -> None:
        stream = np.random.default_rng(0)
        self.pixels = {stem: stream.integers(0, 256, (EACH, 3, 32, 32), dtype=np.uint8) for stem in STEMS}
        self.labels = {stem: stream.permutation(EACH) % 2 for stem in STEMS}
        keys = ("coarse_labels", "fine_labels") if coarse else ("labels",)
        self.python = {}
        self.binary = {}
        for stem in STEMS:
            columns = [self.labels[stem] + 7, self.labels[stem]] if coarse else [self.labels[stem]]
            flat = self.pixels[stem].reshape(EACH, -1)
            content = {b"data": flat, b"batch_label": stem.encode(), b"filenames": [b"a.png"] * EACH}
            content |= {key.encode(): column.tolist() for key, column in zip(keys, columns, strict=True)}
            self.python[stem] = pickle.dumps(content, protocol=4)
            table = np.concatenate([*(column[:, None].astype(np.uint8) for column in columns), flat], axis=1)
            self.binary[f"{stem}.bin"] = table.tobytes()
        self.spec = CifarSpec(
            name="tiny",
            class_names=("cat", "dog"),
            label_keys=keys,
            batches=tuple(
                Batch(stem, part, self.md5(self.binary[f"{stem}.bin"]), self.md5(self.python[stem]))
                for stem, part in STEMS.items()
            ),
            folders=("tiny-bin", "tiny-py"),
            url="https://example.invalid/files/tiny.tar.gz",
            npm_package="" if coarse else "tiny-package@1.0.0",
        )

    @property
    def png(self) -> dict[str, bytes]:
        files = {}
        for stem in STEMS:
            rows = self.pixels[stem].reshape(EACH, 3, 1024).transpose(0, 2, 1)
            buffer = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(rows)).save(buffer, "PNG")
            files[f"{stem}.png"] = buffer.getvalue()
        for part in ("train", "test"):
            labels = [label for stem in STEMS if STEMS[stem] == part for label in self.labels[stem].tolist()]
            files[f"{part}_lables.json"] = json.dumps(labels).encode()
        return files

    @staticmethod
    def md5(content: bytes) -> str:
        return hashlib.md5(content).hexdigest()

    @staticmethod
    def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    @staticmethod
    def write_archive(path: Path, files: dict[str, bytes], inside: str = "tiny-bin") -> Path:
        with tarfile.open(path, f"w:{path.suffix[1:].replace('tgz', 'gz')}") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"{inside}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return path


@pytest.fixture
def fake_cifar():
    return FakeCifar()


@pytest.fixture
def fake_cifar_with_two_labels():
    return FakeCifar(coarse=True)
