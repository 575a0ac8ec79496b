"""The presets that come with fedssl, as files: a list of them needs no torch."""

import tomllib
from importlib import resources
from typing import Any


def preset_names(folder: str = "") -> list[str]:
    """All presets, or with "algorithms" what can be put behind them."""
    names = [path.name.removesuffix(".toml") for path in _presets(folder).iterdir() if path.name.endswith(".toml")]
    return sorted(names)


def preset_description(name: str, folder: str = "") -> str:
    return str(read_preset(name, folder).get("description", ""))


def read_preset(name: str, folder: str = "") -> dict[str, Any]:
    return tomllib.loads((_presets(folder) / f"{name}.toml").read_text())


def _presets(folder: str) -> Any:
    root = resources.files(__package__) / "presets"
    return root / folder if folder else root
