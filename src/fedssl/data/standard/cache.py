"""Datasets on this machine's disk: one safetensors file for each part, read by memory mapping."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedssl.core.errors import FedsslError
from fedssl.core.files import replacing
from fedssl.data.dataset import Images
from fedssl.data.folders import make_folder


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


def load_images(path: Path) -> tuple[Images, str]:
    """The images, memory mapped, and the source's name."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        class_names = tuple(json.loads(about["class_names"]))
        return Images(tensors["pixels"], tensors.get("labels"), class_names=class_names), about["source"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FedsslError(f"{path} is not readable ({error}): delete it and fetch the dataset again") from None
