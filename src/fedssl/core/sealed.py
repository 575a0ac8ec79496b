"""A sealed folder: tensors and facts that are whole and as they were written, or not there at all.

tensors.safetensors holds the tensors; manifest.json holds the facts, the size and SHA-256 of the tensor file, and in
its last line the SHA-256 of all that stands above it. The folder gets its name when both are on the disk.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.checksums import Seal, problem_of, read_signed, signed_json
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import UNFINISHED, remove_folder, storing, sync
from fedssl.core.weights import Weights

TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"
_DTYPES = {  # in the order in which the format's library lays them out: the widest first, so that all are aligned
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PLACES = {dtype: place for place, dtype in enumerate(_NAMES)}
MOST_HEADER = 2**24  # bytes: names and shapes of a hundred thousand tensors


@dataclass(frozen=True)
class Sealed:
    """An opened folder whose checksums were found right; tensors are memory-mapped, read when they are touched."""

    folder: Path
    facts: dict[str, Any]

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix`, under the rest of their names."""
        return read_tensors(self.folder / TENSORS, prefix)

    def weights(self, part: str) -> Weights:
        tensors = self.tensors(f"{part}/")
        return Weights(under("parameters/", tensors), under("buffers/", tensors))


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a file whose names begin with `prefix`, under the rest of their names, memory-mapped.

    By the format's own description, not by its library: that keeps 64 bytes for ever of every tensor it reads this way
    (safetensors 0.8), and a run of ten thousand rounds reads millions.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        whole: Any = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=os.fstat(file.fileno()).st_size)
    tensors = {}
    for name, about in header.items():
        if name.startswith(prefix) and name != "__metadata__":
            dtype, begin = _DTYPES[about["dtype"]], 8 + size + about["data_offsets"][0]
            tensors[name.removeprefix(prefix)] = torch.empty(0, dtype=dtype).set_(
                whole, begin // dtype.itemsize, about["shape"], _strides(about["shape"])
            )
    return tensors


def _strides(shape: list[int]) -> list[int]:
    """Row-major, as the format stores them."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def named_weights(part: str, tensors: Mapping[str, Tensor]) -> Weights:
    """Weights by the names that `named_tensors` gave them."""
    return Weights(under(f"{part}/parameters/", tensors), under(f"{part}/buffers/", tensors))


def named_tensors(part: str, weights: Weights) -> dict[str, Tensor]:
    """The names under which `named_weights` finds them again."""
    parameters = {f"{part}/parameters/{name}": tensor for name, tensor in weights.parameters.items()}
    return parameters | {f"{part}/buffers/{name}": tensor for name, tensor in weights.buffers.items()}


def seal(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Sealed:
    """Writes a sealed folder; one of the same name is replaced."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}{UNFINISHED}")
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with storing(folder, needed):
        folder.parent.mkdir(exist_ok=True)  # one level: a run folder that vanished is not made again in silence
        unfinished.mkdir()
        try:
            _write(unfinished, tensors, facts)
            if folder.exists():
                remove_folder(folder)
            unfinished.replace(folder)
        finally:  # on a full disk half a file would stand in the way of the next attempt
            shutil.rmtree(unfinished, ignore_errors=True)
        sync(folder.parent)
    return Sealed(folder, facts)


def rounds_in(folder: Path) -> list[int]:
    """The rounds of which `folder` has a sealed folder `round-…`, in order."""
    names = [path.name.removeprefix("round-") for path in folder.glob("round-*")]
    return sorted(int(name) for name in names if name.isdigit())


def _write(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    written = write_tensors(folder / TENSORS, tensors)
    sync(folder / TENSORS)
    content = json.dumps({**facts, "tensors": written}, indent=1, allow_nan=False)
    (folder / MANIFEST).write_text(signed_json(content), encoding="utf-8")
    sync(folder / MANIFEST)
    sync(folder)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Seal:
    """Writes a file of tensors, byte by byte as the format's library would; returns its size and checksum.

    The checksum is made from memory while the system writes: the bytes are neither read again nor waited for twice.
    """
    in_order = dict(sorted(tensors.items(), key=lambda item: (_PLACES[item[1].dtype], item[0])))
    parts = [_header(in_order), *map(_bytes, in_order.values())]
    with ThreadPoolExecutor(1) as helper, open(path, "wb", opener=_private) as file:
        checksum = helper.submit(_checksum, parts)
        for part in parts:
            file.write(part)
        return {"bytes": sum(map(len, parts)), "sha256": checksum.result()}


def _checksum(parts: list[memoryview]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _header(tensors: dict[str, Tensor]) -> memoryview:
    about, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        about[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return memoryview(len(text).to_bytes(8, "little") + text)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _private(path: str, flags: int) -> int:
    """What a client remembers is for nobody else on its machine to read."""
    return os.open(path, flags, 0o600)


def check_layout(buffer: bytes) -> None:
    """Refuses tensors that are not what the size of their buffer allows, by its header, before any of them is made."""
    size = int.from_bytes(buffer[:8], "little")
    if not 0 < size <= min(len(buffer) - 8, MOST_HEADER):
        raise FedsslError(f"tensors that cannot be read: a header of {size} bytes in a buffer of {len(buffer)}")
    for name, about in json.loads(buffer[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in _DTYPES:
            raise FedsslError(f"{name}: tensors of type {about['dtype']} are not part of any model here")
        whole = all(type(length) is int and length >= 0 for length in about["shape"])
        # Also of an empty tensor: its strides are products of the other lengths.
        if not whole or math.prod(max(length, 1) for length in about["shape"]) > len(buffer):
            raise FedsslError(f"{name}: a shape that does not fit into {len(buffer)} bytes")


def unseal(folder: Path) -> Sealed:
    """Opens a sealed folder after checking every byte of it; DamagedError says which file and why."""
    facts: dict[str, Any] = json.loads(read_signed(folder / MANIFEST))
    facts.pop("sha256")
    if problem := problem_of(folder / TENSORS, facts.pop("tensors")):
        raise DamagedError(f"{folder / TENSORS}: {problem}")
    return Sealed(folder, facts)
