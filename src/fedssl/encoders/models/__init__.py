"""Small encoders that come with fedssl, to try: one folder each, as `fedssl export` writes it, and models.toml."""

import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedssl.core.errors import DamagedError

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Model:
    """An encoder that is there without a network: its name, what it is, and where its files and card lie."""

    name: str
    description: str
    images: str  # what goes in: "3 x 32 x 32"
    features: int
    accuracy: str  # as the run measured it; the card has the intervals
    data: str
    sha256: str  # of the file

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def file(self) -> Path:
        """The weights; damaged ones are refused."""
        file = self.folder / "encoder.safetensors"
        if not file.exists() or sha256(file.read_bytes()).hexdigest() != self.sha256:
            raise DamagedError(f"{file}: not the file that fedssl was published with: install fedssl again")
        return file


def models() -> dict[str, Model]:
    """The encoders that come with fedssl, by name; `load_encoder` takes each of these names.

    >>> fedssl.models()["cifar10-fedema-small"].images
    '3 x 32 x 32'
    """
    index = tomllib.loads((HERE / "models.toml").read_text(encoding="utf-8"))
    return {name: Model(name=name, **facts) for name, facts in index.items()}
