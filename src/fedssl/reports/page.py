"""The content of a report as plain values, and its one HTML file."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import TYPE_CHECKING

from fedssl import __version__
from fedssl.reports.plots import Drawing, Key

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A point of a map that shows its image when it is pointed at: column and row of it in the section's sheet."""

    left: str
    top: str
    column: int
    row: int
    label: str


@dataclass(frozen=True)
class Panel:
    heading: str
    svg: str
    spots: tuple[Spot, ...] = ()


@dataclass(frozen=True)
class Thumb:
    """A small image with a word below it; `mark` is query, start (of a group), same, other or nothing."""

    uri: str
    alt: str
    note: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Strip:
    label: str
    thumbs: tuple[Thumb, ...]


@dataclass(frozen=True)
class Figure:
    """Drawings or rows of small images, with a title and a sentence on how to read them."""

    id: str
    title: str
    caption: str
    _: KW_ONLY
    panels: tuple[Panel, ...] = ()
    strips: tuple[Strip, ...] = ()
    legend: tuple[Key, ...] = ()
    wide: bool = False

    @property
    def longest_word(self) -> int:
        """Letters of the longest word in the labels of the strips, which get room for it; hyphens may end a line."""
        words = (word for strip in self.strips for word in re.findall(r"[^\s-]+-?", strip.label))
        return max(map(len, words), default=0)

    @classmethod
    def of(cls, id: str, title: str, caption: str, drawing: Drawing, *, wide: bool = False) -> "Figure":
        return cls(id, title, caption, panels=(Panel("", drawing.svg),), legend=drawing.legend, wide=wide)


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    intro: str
    _: KW_ONLY
    figures: tuple[Figure, ...]
    sheet: str = ""  # the images of all spots as one picture


@dataclass(frozen=True)
class Tile:
    """A headline number, or a few words; `tone`, better, same or worse, gives these a colour."""

    label: str
    value: str
    note: str = ""
    _: KW_ONLY
    is_text: bool = False
    tone: str = ""


Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """One run, ready to be shown."""

    id: str
    name: str
    title: str
    story: Sequence[str]
    tiles: Sequence[Tile]
    warnings: Sequence[str]
    sections: Sequence[Section]
    sites_head: Sequence[str]
    sites: Rows  # what each found with its own labels
    evaluation: Rows
    settings: Sequence[tuple[str, Rows]]
    rounds_head: Sequence[str]
    rounds: Rows
    environment: Rows
    left_out: Sequence[tuple[str, str]]

    @property
    def contents(self) -> list[tuple[str, str]]:
        links = [(f"{self.id}-sites", "At the sites")] if self.sites else []
        links += [(section.id, section.title) for section in self.sections]
        if self.evaluation:
            links.append((f"{self.id}-evaluation", "Evaluation afterwards"))
        return [*links, (f"{self.id}-details", "Settings, numbers, environment")]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    story: Sequence[str]
    names: list[str]
    verdicts: Sequence[Tile]
    differing: Rows
    results: Rows
    equal: Rows  # in all runs: results, then settings
    curves: Section


@dataclass(frozen=True)
class Page:
    runs: Sequence[RunPage]
    version: str
    comparison: Comparison | None = None

    @property
    def title(self) -> str:
        return f"{len(self.runs)} runs compared" if self.comparison else self.runs[0].title

    @property
    def story(self) -> Sequence[str]:
        """What stands above the verdict: of a run alone one paragraph, the others follow it."""
        return self.comparison.story if self.comparison else self.runs[0].story[:1]

    @property
    def contents(self) -> list[tuple[str, str]]:
        if self.comparison is None:
            return self.runs[0].contents
        curves = self.comparison.curves
        return [("compared", "Side by side"), (curves.id, curves.title), *((run.id, run.name) for run in self.runs)]


@dataclass(frozen=True)
class TablePart:
    """A table ready to be shown, all cells as text."""

    caption: str
    head: Sequence[str]
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Tables, figures and lists under one heading."""

    id: str
    title: str
    story: Sequence[str]
    tables: Sequence[TablePart]
    figures: Sequence[Figure]
    notes: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class Chapters:
    """A page of chapters that is not about single runs."""

    title: str
    eyebrow: str
    story: Sequence[str]
    chapters: Sequence[Chapter]
    settings: Sequence[TablePart]
    settings_title: str = "Settings of this scale"
    version: str = __version__


@dataclass(frozen=True)
class FigurePage:
    """Figures with a few words before them, where there is no run to tell of."""

    title: str
    story: Sequence[str]
    figures: Sequence[Figure]
    version: str


TEMPLATES = {Page: "report.html", Chapters: "chapters.html", FigurePage: "figures.html"}


def render(page: Page | Chapters | FigurePage) -> str:
    """The whole file; every text is escaped, only drawings go in as they are."""
    return templates().get_template(TEMPLATES[type(page)]).render(page=page)


@cache
def templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("fedssl.reports", "templates"),
        # Not by file name alone: styles must stay as they are, everything else is escaped.
        autoescape=lambda name: not (name or "").endswith(".css"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
