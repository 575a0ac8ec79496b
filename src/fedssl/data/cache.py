"""Datasets on this machine's disk: one safetensors file for each part, read by memory mapping."""

import json
import os
from pathlib import Path

import platformdirs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedssl.data.images import Images
from fedssl.errors import FedsslError
from fedssl.files import replacing


def data_folder() -> Path:
    """The folder named by FEDSSL_DATA, else `data` in the user's cache folder."""
    named = os.environ.get("FEDSSL_DATA")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("fedssl")) / "data"


def save_images(path: Path, images: Images, source: str) -> None:
    """Write pixels, labels, class names and the source's name; a kill leaves the old file or the new one."""
    tensors = {"pixels": images.pixels.contiguous()}
    if images.labels is not None:
        tensors["labels"] = images.labels.contiguous()
    make_folder(path.parent)
    try:
        with replacing(path) as unfinished:
            # Not save_file: its files are readable by their owner alone, and a data folder may be shared.
            unfinished.write_bytes(save(tensors, {"class_names": json.dumps(images.class_names), "source": source}))
    except (OSError, SafetensorError) as error:
        raise FedsslError(
            f"{path} cannot be written ({error}): free space or name another folder in FEDSSL_DATA"
        ) from None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedsslError(f"{folder} cannot be made ({error}): name another folder in FEDSSL_DATA") from None


def load_images(path: Path) -> tuple[Images, str]:
    """The images, memory mapped, and the source's name."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        class_names = tuple(json.loads(about["class_names"]))
        return Images(tensors["pixels"], tensors.get("labels"), class_names), about["source"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FedsslError(f"{path} is not readable ({error}): delete it and fetch the dataset again") from None
