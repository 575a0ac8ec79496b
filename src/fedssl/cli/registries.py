"""The lists of methods, networks and other parts: `registries.json`, made from the registries, is read without torch.

python -m fedssl.cli.registries     writes it anew; a test says when that is due
"""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import typer

FILE = "registries.json"


def print_registry(table: str) -> None:
    """All entries of a registry with their settings, and the names that installed packages add to it."""
    for entry in _read()[table]["entries"]:
        _print_entry(table, entry)
    _print_installed(table)


def print_short(table: str, command: str) -> None:
    """A line for each entry; `command` with its name shows the settings."""
    for entry in _read()[table]["entries"]:
        typer.secho(entry["name"], bold=True, nl=False)
        typer.echo("  " + " ".join(filter(None, (entry["summary"], entry["needs"], entry["warning"]))))
    _print_installed(table)
    typer.echo(f"Settings: {command} NAME")


def print_one(table: str, name: str, command: str) -> None:
    """One entry with its settings."""
    from fedssl.core.registry import unknown

    entries = {entry["name"]: entry for entry in _read()[table]["entries"]}
    if name not in entries:
        raise unknown(f"{command}: there is no", name, entries, command)
    _print_entry(table, entries[name])


def _print_entry(table: str, entry: dict[str, Any]) -> None:
    typer.secho(entry["name"], bold=True, nl=False)
    typer.echo(f"  {entry['summary']}")
    if entry["needs"]:
        typer.echo(f"    {entry['needs']}")
    if entry["warning"]:
        typer.secho(f"    {entry['warning']}", fg="yellow")
    for key, (expected, default) in entry["settings"].items():
        typer.echo(f"    {table}.{key} = {default}   ({expected})")


def _print_installed(table: str) -> None:
    from importlib.metadata import entry_points

    described = _read()[table]
    own = {entry["name"] for entry in described["entries"]}
    for one in entry_points(group=described["group"]):  # listed, not imported
        if one.name not in own:
            typer.secho(one.name, bold=True, nl=False)
            typer.echo(f"  of an installed package ({one.value})")


@cache
def _read() -> dict[str, Any]:
    return dict(json.loads((resources.files(__package__) / FILE).read_text(encoding="utf-8")))


def describe_registries() -> dict[str, Any]:
    """What the file must hold, from the registries themselves."""
    from fedssl.experiment.config.schema import CHOICES, COMMON
    from fedssl.networks.backbones import BACKBONES

    registries = {**CHOICES, "network": BACKBONES}
    listed = ("network", "method", "update_rule", "aggregation", "privacy")
    return {table: _described(registries[table], COMMON.get(table)) for table in listed}


def _described(registry: Any, common: Any) -> dict[str, Any]:
    from fedssl.core.settings import needs_of, summary_of
    from fedssl.experiment.config.messages import describe_settings

    families = {name: registry[name] for name in (f"{family}:NAME" for family in registry.families)}
    entries = []
    for name, factory in {**registry, **families, **({"with any of them": common} if common else {})}.items():
        leaves = getattr(factory, "leaves", "")
        warning = f"FEATURES LEAVE THE CLIENT: {leaves}" if leaves else ""
        settings = {key: list(words) for key, words in describe_settings(factory).items()}
        texts = {"summary": summary_of(factory), "needs": needs_of(factory), "warning": warning}
        entries.append({"name": name, **texts, "settings": settings})
    return {"group": registry.group, "entries": entries}


if __name__ == "__main__":
    text = json.dumps(describe_registries(), indent=1, ensure_ascii=False)
    Path(__file__).with_name(FILE).write_text(f"{text}\n", encoding="utf-8")
