"""What the documentation has from the code: settings, policies, networks, recipes, how experiments were read.

python -m scripts.reference     fills them in between the marks of the pages; the website has tables of the same
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedssl.core.registry import Registry
from fedssl.core.settings import summary_of
from fedssl.data.augmentation.recipes import RECIPES
from fedssl.data.own.layouts import folder
from fedssl.deployment.policy import SAFE, Policy
from fedssl.experiment.config.messages import describe_settings
from fedssl.experiment.config.schema import COMMON, LocalTraining
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.methods import METHODS
from fedssl.networks.backbones import BACKBONES
from fedssl.paper.catalogue import load_studies

REMARK = re.compile(r"^\s+(\w+): .*?  # (?!noqa|type:)(.+)$", re.MULTILINE)  # `key: int = 1,  # what it is`
MARKS = re.compile(r"(?ms)^(<!-- reference: ([a-z -]+) -->\n).*?^(<!-- end of reference -->)$")
AS_IT_IS: Mapping[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
DOCS = Path(__file__).resolve().parents[1] / "docs"


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.replace('|', '&#124;').split()) for cell in row)} |"
    yield ""


def settings_table(factory: Any, prefix: str) -> Iterator[str]:
    """Every setting with its default, what it accepts and, where the code says it, its meaning."""
    rows = list(_settings(factory, prefix))
    titles: tuple[str, ...] = ("setting", "default", "accepts", "meaning")
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    yield from table(titles, rows) if rows else ()


def _settings(factory: Any, prefix: str) -> Iterator[tuple[str, ...]]:
    remarks = _remarks(factory)
    changed = factory.keywords if isinstance(factory, partial) else None  # the others are those of its function
    for name, (accepts, default) in describe_settings(factory).items():
        if changed is None or name in changed:
            yield (f"`{prefix}{name}`", f"`{default}`", accepts, remarks.get(name, ""))


def _remarks(factory: Any) -> dict[str, str]:
    """What stands beside a setting in the code: its description, or the comment at the end of its line."""
    if fields := getattr(factory, "model_fields", None):
        return {name: field.description or "" for name, field in fields.items()}
    factory = getattr(factory, "func", factory)
    bases = inspect.getmro(factory)[::-1] if inspect.isclass(factory) else [factory]
    remarks: dict[str, str] = {}
    for source in (one for one in bases if one.__module__.startswith("fedssl")):
        remarks |= dict(REMARK.findall(inspect.getsource(source)))
    return remarks


def _list(entries: Iterable[tuple[str, str, str]]) -> str:
    """Items of a page, whose lines are short: a name, a value in brackets and a text."""
    items = (
        f"- `{name}`{f' ({value})' if value else ''}{f': {text}' if text else ''}" for name, value, text in entries
    )
    return "\n".join(textwrap.fill(" ".join(one.split()), 120, subsequent_indent="  ", **AS_IT_IS) for one in items)


def _settings_list(factory: Any, prefix: str, begins: str = "") -> str:
    """Without the ranges, which an error names."""
    rows = [(name.strip("`"), default, text) for name, default, _, text in _settings(factory, prefix)]
    return _list(row for row in rows if row[0].startswith(f"{prefix}{begins}"))


def _policy() -> str:
    def values(name: str, default: Any) -> str:
        return "; ".join(_said(value) for value in dict.fromkeys(map(str, (default, SAFE.get(name, default)))))

    fields = Policy.model_fields.items()
    return _list((name, values(name, field.default), field.description or "") for name, field in fields)


def _said(value: str) -> str:
    """A value of a policy in words."""
    return {"": "always", "[]": "all", "None": "no limit", "True": "yes", "False": "no"}.get(
        value, value.removesuffix(".0")
    )


def _entries(registry: Registry[Any]) -> str:
    families = {name: registry[name] for name in (f"{family}:NAME" for family in registry.families)}
    return _list((name, "", summary_of(factory)) for name, factory in {**registry, **families}.items())


def _departures() -> str:
    return _grouped((name, getattr(one, "departs", "")) for name, one in {**METHODS, **AGGREGATORS}.items())


def _readings() -> str:
    return _grouped((name, study.read_as) for name, study in load_studies().items())


def _grouped(texts: Iterable[tuple[str, str]]) -> str:
    """Names of the same text become one item; those without one are left out."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    return _list(("`, `".join(some), "", text) for text, some in names.items() if text)


LISTS: Mapping[str, Callable[[], str]] = {
    "policy": _policy,
    "local training": lambda: _settings_list(LocalTraining, "local_training."),
    "secure aggregation": lambda: _settings_list(COMMON["aggregation"], "aggregation.", "secure"),
    "own images": lambda: _settings_list(folder, "data."),
    "recipes": lambda: _entries(RECIPES),
    "networks": lambda: _entries(BACKBONES),
    "departures": _departures,
    "readings": _readings,
}


def filled(page: str) -> str:
    """The page with the lists as the code has them today."""
    return MARKS.sub(lambda match: f"{match[1]}{LISTS[match[2]]()}\n{match[3]}", page)


if __name__ == "__main__":
    for path in DOCS.glob("*.md"):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
