"""Features on disk: a safetensors file for each encoder, dataset, BatchNorm mode and kind; may be deleted any time."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedssl.core.files import replacing
from fedssl.core.weights import Weights

FORMAT = "1"  # raise it when the same weights and images come to give other features


@dataclass(frozen=True)
class FeatureCache:
    """A folder of features; a file that is damaged or of another key counts as not there."""

    folder: Path

    def load(self, key: str) -> tuple[Tensor, Tensor] | None:
        """(train, test) features, or None."""
        try:
            with safe_open(self._path(key), framework="pt") as file:
                train, test = file.get_tensor("train"), file.get_tensor("test")
                return (train, test) if file.metadata() == self._about(key, train, test) else None
        except (OSError, SafetensorError):
            return None

    def save(self, key: str, train: Tensor, test: Tensor) -> None:
        """A kill leaves the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(key)) as unfinished:
            unfinished.write_bytes(save({"train": train, "test": test}, self._about(key, train, test)))

    def _about(self, key: str, train: Tensor, test: Tensor) -> dict[str, str]:
        return {"key": self._full(key), "sha256": Weights({"train": train, "test": test}).digest()}

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(self._full(key).encode()).hexdigest()[:24]}.safetensors"

    def _full(self, key: str) -> str:
        return f"format {FORMAT}, {key}"
