"""Presets, files and overrides: layers of tables, the later over the earlier, before they are validated."""

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError
from fedssl.core.registry import AllowCode, Typed, unknown
from fedssl.experiment.config.preset_files import preset_names, read_preset
from fedssl.experiment.config.resolve import known_settings, resolve
from fedssl.experiment.config.schema import DEFAULTS, Config, Raw
from fedssl.networks.backbones import BACKBONES
from fedssl.networks.libraries import is_published


def load_raw(name: str, overrides: Mapping[str, Any] | None = None) -> Raw:
    """The tables of PRESET, PRESET+ALGORITHM or a TOML file, with overrides such as {"update_rule.tau": 0.5} on top."""
    raw = _load_file(Path(name)) if name.endswith(".toml") else _load_preset(name)
    return _like_weights(_with_pretrained(_merged(raw, _nested(overrides or {}))))


def _with_pretrained(raw: Raw) -> Raw:
    """network.pretrained is short for init.encoder: only that is kept, so no message of a server can say it.

    A network by import path keeps the setting, which is its own.
    """
    network = raw.get("network")
    if not isinstance(network, dict) or "pretrained" not in network or network.get("name", "") not in BACKBONES:
        return raw
    given, name = network["pretrained"], network["name"]
    rest = {key: value for key, value in network.items() if key != "pretrained"}
    if given is True and not is_published(name):
        raise FedsslError(f"network.pretrained: nobody publishes weights of {name}: give a .safetensors file")
    if not isinstance(given, bool | str):
        raise FedsslError(f"network.pretrained: {given!r} is neither a file nor true or false")
    if not given:
        return raw | {"network": rest}
    init = raw.get("init", {})
    if init.get("encoder"):
        raise FedsslError("network.pretrained: init.encoder says where weights start from already: give one of the two")
    return raw | {"network": rest, "init": {**init, "encoder": name if given is True else given}}


def _like_weights(raw: Raw) -> Raw:
    """A new start from weights sees images as they did; a run's own config names their checksum, and says how."""
    init = raw.get("init")
    if not isinstance(init, dict) or not init.get("encoder") or init.get("sha256"):
        return raw
    for table, keys in (("data", ("resampling",)), ("network", ("mean", "std"))):
        given = raw.get(table, {})
        if isinstance(given, dict):
            known = known_settings(table, given.get("name", DEFAULTS.get(table))) or ()
            raw = raw | {table: {**{key: "auto" for key in keys if key in known}, **given}}
    return raw


def load_config(name: str, overrides: Mapping[str, Any] | None = None, allow_code: AllowCode = ()) -> Config:
    """Settings of fedssl's own methods, networks and the like, and of those that were allowed."""
    return resolve(load_raw(name, overrides), allow_code)


def typed_config(name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Settings that a person typed, or whose file they named: they allow the code that they name, and no other."""
    typed = Typed()
    config = load_config(name, overrides, typed)
    BACKBONES.find(config.network.name, typed)  # what cannot be imported is said at once
    return replace(config, allow_code=tuple(typed))


def _load_preset(name: str) -> Raw:
    setting, *algorithms = name.split("+")
    if setting not in preset_names():
        raise unknown("there is no preset or .toml file", setting, preset_names(), "fedssl presets")
    raw = _extended(read_preset(setting))
    for algorithm in algorithms:
        if algorithm not in preset_names("algorithms"):
            raise unknown("there is no algorithm", algorithm, preset_names("algorithms"), "fedssl presets")
        layer = read_preset(algorithm, "algorithms")
        layer.pop("description", None)
        raw = _merged(raw, layer)
    return raw


def _load_file(path: Path) -> Raw:
    try:
        return _extended(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FedsslError(f"{path}: there is no such file; `fedssl presets` lists what comes with fedssl") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedsslError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise FedsslError(f"{path}: cannot be read: {error.strerror}") from None


def _extended(raw: Raw) -> Raw:
    """A file may build on a preset: extends = "paper" or "cifar10-noniid+fedu"."""
    base = raw.pop("extends", None)
    return raw if base is None else _merged(_load_preset(str(base)), raw)


def _merged(base: Raw, layer: Raw) -> Raw:
    """`layer` over `base`; where it names another entry of a registry, settings which that one lacks fall away."""
    merged = copy.deepcopy(base)
    for key, value in layer.items():
        if not isinstance(value, dict) or not isinstance(merged.get(key), dict):
            merged[key] = value
            continue
        table = merged[key]
        name = value.get("name", table.get("name"))
        known = known_settings(key, name) if name != table.get("name") else None
        if known is not None:
            table = {setting: v for setting, v in table.items() if setting in known}
        merged[key] = {**table, **value}
    return merged


def _nested(overrides: Mapping[str, Any]) -> Raw:
    nested: Raw = {}
    for path, value in overrides.items():
        *tables, key = path.split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise FedsslError(f"{path}: {table!r} is a value, not a table")
        place[key] = value
    return nested


def parse_override(text: str) -> tuple[str, Any]:
    """`update_rule.tau=0.5` -> (path, value); the value is TOML, or a plain text if it is not."""
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise FedsslError(f"--set {text}: write it as table.key=value, for example update_rule.tau=0.5")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()
