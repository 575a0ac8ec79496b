"""What the website has beside docs/: reference pages made from the code, and pages from the root of the repository.

mkdocs.yml names this file as a hook of MkDocs and as an extension of mkdocstrings; `make docs` builds the site.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedssl
from fedssl.cli.main import app
from fedssl.core.registry import Registry
from fedssl.core.settings import summary_of
from fedssl.experiment.config.preset_files import preset_description, preset_names
from fedssl.experiment.config.schema import CHOICES, COMMON, MODELS, LocalTraining, Run
from fedssl.networks.backbones import BACKBONES
from scripts.reference import settings_table, table

LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs asks for more files than docs/ has."""
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    for name, source in FROM_ROOT.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links lead to the site's own pages; what the site does not have is named by its path in the repository."""
    base = ROOT if page.file.src_uri in FROM_ROOT else DOCS
    return LINK.sub(lambda match: _link(base, match), markdown)


def _link(base: Path, match: re.Match[str]) -> str:
    text, target, anchor = match.groups(default="")
    path = Path(os.path.normpath(base / target))
    at_root = {ROOT / source: name for name, source in FROM_ROOT.items()}
    if path in at_root or path.parent == DOCS:
        return f"[{text}]({at_root.get(path, path.name)}{anchor})"
    return f"{text} (`{path.relative_to(ROOT)}`)" if path.exists() else match[0]  # MkDocs refuses a dead link


class FencedExamples(griffe.Extension):
    """Examples in docstrings (`>>> …`) become code; Markdown would take them for quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            example = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
            obj.docstring.value = example.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def command_page() -> str:
    """The `fedssl` command: every command with its arguments and options, as --help has them."""
    root: Any = typer.main.get_command(app)
    return "\n".join(["# The command", "", root.help, "", *_commands(root, "fedssl")])


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        whole = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, whole)
            if not command.invoke_without_command:
                continue
        yield f"## {whole}\n"
        with_context = command.make_context(name, [], resilient_parsing=True)
        yield f"```text\n{whole} {' '.join(command.collect_usage_pieces(with_context))}\n```\n"
        yield f"{_help_text(command.help or '')}\n"
        rows = [row for one in command.params if not one.hidden and (row := _parameter(one, with_context))]
        yield from table(("option", "meaning"), rows) if rows else ()


def _parameter(parameter: Any, context: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return f"`{parameter.make_metavar(context)}`", parameter.help or ""
    names, text = parameter.get_help_record(context)
    return f"`{names}`", text


def _help_text(text: str) -> str:
    """Lines that show a call of the command become code."""
    shown = re.sub(r"^ +(fedssl .*)$", r"```sh\n\1\n```", inspect.cleandoc(text), flags=re.MULTILINE)
    return re.sub(r"\n```\n+```sh\n", "\n", shown)


def settings_page() -> str:
    """Every setting of a run, table by table, with what it accepts and its default."""
    lines = ["# Settings", ""]
    lines += ["Give one with `--set TABLE.KEY=VALUE`, or in a TOML file that `extends` a preset.", ""]
    lines += [*_section("run, without a table name", Run, "")]
    for name, registry in {**CHOICES, "network": BACKBONES}.items():
        lines += _registry(name, registry)
    for name, model in MODELS.items():
        lines += _section(name, model, f"{name}.") if name != "network" else []
    return "\n".join([*lines, *_section("local_training", LocalTraining, "local_training.")])


def _section(title: str, factory: Any, prefix: str) -> Iterator[str]:
    yield from (f"## {title}", "", inspect.cleandoc(factory.__doc__ or ""), "")  # not that of a base class
    yield from settings_table(factory, prefix)


def _registry(key: str, registry: Registry[Any]) -> Iterator[str]:
    yield f"## {key}\n"
    yield f"`{key}.name` is one of these, or an import path `package.module:Name`.\n"
    families = {name: registry[name] for name in (f"{family}:NAME" for family in registry.families)}
    for name, factory in {**registry, **families}.items():
        yield f"### {name} {{ #{key}-{re.sub('[^a-z0-9-]', '-', name.lower())} }}\n"
        yield f"{summary_of(factory)}\n"
        if leaves := getattr(factory, "leaves", ""):
            yield f"**Features leave the client:** {leaves}\n"
        if departs := getattr(factory, "departs", ""):
            yield f"Departs from its paper: {departs}.\n"
        yield from settings_table(factory, f"{key}.")
    if key in COMMON:
        yield f"### with any of them {{ #{key}-any }}\n"
        yield from settings_table(COMMON[key], f"{key}.")


def presets_page() -> str:
    """The presets and the algorithms that can be put behind them."""
    lines = ["# Presets and algorithms", "", "`fedssl run PRESET` or `fedssl run PRESET+ALGORITHM`.", ""]
    for title, folder in {"Presets": "", "Algorithms": "algorithms"}.items():
        rows = [(f"`{name}`", preset_description(name, folder)) for name in preset_names(folder)]
        lines += [f"## {title}", "", *table(("name", "what"), rows)]
    return "\n".join(lines)


def python_page() -> str:
    """The public names of the package, and what a package of somebody else builds on; mkdocstrings fills them in."""
    to_use = [*(f"fedssl.{name}" for name in fedssl.__all__), "fedssl.encoders.sklearn.Encoder"]
    to_extend = [
        "fedssl.methods.base.SiameseMethod",
        "fedssl.federation.model_communication.UpdateRule",
        "fedssl.federation.model_aggregation.base.Aggregator",
    ]
    lines = ["# Python", ""]
    for title, paths in {"To use": to_use, "To extend": to_extend}.items():
        lines += [f"## {title}", "", *(f"::: {path}\n" for path in paths)]
    return "\n".join(lines)


GENERATED: Mapping[str, Callable[[], str]] = {
    "cli.md": command_page,
    "settings.md": settings_page,
    "presets.md": presets_page,
    "python.md": python_page,
}
