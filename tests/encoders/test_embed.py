"""`fedssl embed`: names and features in a stable order, bad images named and passed over, memory that does not grow."""

import json
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pyarrow import parquet

from fedssl.core.errors import FedsslError, StorageError
from fedssl.data.own.cache import AHEAD, MOST_THREADS
from fedssl.data.own.folder import Files
from fedssl.encoders import feature_files
from fedssl.encoders.embed import ImageReader, embed, write_features
from fedssl.encoders.trained import open_encoder
from fedssl.evaluation.features import compute_features
from fedssl.experiment.finished_run import FinishedRun
from tests.helpers.small_photos import BAD, spoil, train, write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_photos(folder / "photos")
    train(folder / "photos", folder / "run")
    return folder


@pytest.fixture
def photos(place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "photos")
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def encoder(place):
    return open_encoder(place / "run")


def written(encoder, images, path, **options):
    reader = ImageReader([str(one) for one in images], encoder.decoding)
    return write_features(encoder.model.backbone, reader, path, encoder.about, **options)


def as_arrays(path):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["names"].tolist(), arrays["features"], json.loads(str(arrays["about"]))
    table = parquet.read_table(path)
    features = np.array(table["features"].to_pylist(), dtype=np.float32)
    return table["name"].to_pylist(), features, json.loads(table.schema.metadata[b"fedssl"])


@pytest.mark.parametrize("ending", [".parquet", ".npz"])
def test_features_are_those_of_the_run_and_bad_images_are_passed_over(place, encoder, photos, tmp_path, ending):
    wanted = compute_features(encoder.model.backbone, FinishedRun.open(place / "run").dataset.train.pixels)
    spoil(photos)
    made = written(encoder, [photos], tmp_path / f"out{ending}", batch_size=5)
    names, features, about = as_arrays(tmp_path / f"out{ending}")
    assert made.images == len(names) == 24
    assert names == sorted(str(path) for path in photos.rglob("[0-9]*.png"))
    np.testing.assert_allclose(features, wanted.numpy(), rtol=0, atol=1e-5)
    assert about["encoder"] == "global"
    lines = [json.loads(line) for line in (tmp_path / "out.skipped.jsonl").read_text().splitlines()]
    assert {line["file"] for line in lines} == {str(photos / name) for name in BAD}
    for line in lines:
        assert BAD[os.path.relpath(line["file"], photos)] in line["reason"]


def test_the_order_is_that_of_the_arguments(encoder, photos, tmp_path):
    images = [photos / "red" / "001.png", photos / "green", photos / "blue" / "000.png", photos / "red" / "000.png"]
    written(encoder, images, tmp_path / "out.npz", batch_size=3)
    names, features, _ = as_arrays(tmp_path / "out.npz")
    green = [str(photos / "green" / f"{number:03}.png") for number in range(8)]
    assert names == [str(images[0]), *green, str(images[2]), str(images[3])]
    written(encoder, [images[3]], tmp_path / "one.npz")
    np.testing.assert_allclose(as_arrays(tmp_path / "one.npz")[1], features[-1:], rtol=0, atol=1e-5)


def test_arrays_and_tables_of_images(encoder, photos, tmp_path):
    (photos / "some.csv").write_text("path\nred/000.png\nblue/001.png\n")
    np.save(tmp_path / "array.npy", np.zeros((2, 16, 16, 3), np.uint8))
    written(encoder, [photos / "some.csv", tmp_path / "array.npy"], tmp_path / "out.npz")
    names, features, _ = as_arrays(tmp_path / "out.npz")
    assert names[:2] == [str(photos / "red" / "000.png"), str(photos / "blue" / "001.png")]
    assert names[2:] == [f"{tmp_path / 'array.npy'}: image {number}" for number in (0, 1)]
    assert np.array_equal(features[2], features[3])
    assert not np.array_equal(features[0], features[1])


def test_tables_are_written_in_groups_of_rows(encoder, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_files, "ROWS", 10)
    written(encoder, [photos], tmp_path / "out.parquet", batch_size=5)
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [10, 10, 4]


def test_no_more_images_are_opened_than_a_few_batches_need(encoder, tmp_path):
    write_photos(tmp_path / "many", each=100, size=16)
    opened = []

    class Counting(Files):
        @contextmanager
        def opened(self):
            with super().opened() as read:
                yield lambda number: opened.append(number) or read(number)

    reader = ImageReader([str(tmp_path / "many")], encoder.decoding)
    reader.groups = [(names, Counting(source.paths)) for names, source in reader.groups]
    batches = embed(encoder.model.backbone, reader, 8)
    next(batches)
    assert len(reader) == 300
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    assert 8 <= len(opened) <= 8 + AHEAD * threads + threads
    batches.close()


def test_what_cannot_work_is_refused_before_anything_is_written(encoder, photos, tmp_path):
    with pytest.raises(FedsslError, match=r"end in \.parquet or \.npz"):
        written(encoder, [photos], tmp_path / "out.csv")
    with pytest.raises(FedsslError, match="nowhere: there is no such file or folder"):
        written(encoder, [photos / "nowhere"], tmp_path / "out.npz")
    with pytest.raises(FedsslError, match="say which images"):
        written(encoder, [], tmp_path / "out.npz")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.png").write_bytes(b"")
    with pytest.raises(FedsslError, match=r"no image there can be used \(1 refused, first .*x\.png: empty file"):
        written(encoder, [tmp_path / "empty"], tmp_path / "out.npz")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("ending", [".parquet", ".npz"])
def test_an_interrupted_file_is_not_there(encoder, photos, tmp_path, ending):
    class Stops(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.weight = 0, torch.nn.Parameter(torch.zeros(1))

        def forward(self, images):
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return images.flatten(1)[:, :4]

    reader = ImageReader([str(photos)], encoder.decoding)
    with pytest.raises(KeyboardInterrupt):
        write_features(Stops(), reader, tmp_path / f"out{ending}", {}, 5)
    assert not list(tmp_path.glob("out*"))


def test_an_earlier_list_of_skipped_images_does_not_stay(encoder, photos, tmp_path):
    spoil(photos)
    assert written(encoder, [photos], tmp_path / "out.npz").skipped_file == tmp_path / "out.skipped.jsonl"
    assert written(encoder, [photos / "green"], tmp_path / "out.npz").skipped_file is None
    assert not (tmp_path / "out.skipped.jsonl").exists()


def test_a_place_that_cannot_be_written_is_said(encoder, photos, tmp_path):
    (tmp_path / "out.npz").mkdir()
    (tmp_path / "out.npz" / "x").touch()
    with pytest.raises(StorageError, match=r"out\.npz: cannot be written"):
        written(encoder, [photos], tmp_path / "out.npz")
