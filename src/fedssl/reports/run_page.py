"""A report: run folders in, one HTML file out; what cannot be shown is named with the reason, never an empty figure."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedssl import __version__
from fedssl.core.errors import FedsslError
from fedssl.core.files import Place, write_atomically
from fedssl.core.memory import keep_freed_memory
from fedssl.core.progress import Say, say_nothing
from fedssl.core.registry import AllowCode
from fedssl.experiment.config.texts import flatten, setting_text
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.progress.views import QuietView, View
from fedssl.experiment.records.metrics import COLUMNS, metrics_of
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.site_accuracy import at_sites
from fedssl.experiment.records.verdict import verdict
from fedssl.reports import prose, run_figures
from fedssl.reports.compare import (
    evaluation_accuracy,
    evaluation_basis,
    evaluation_label,
    parted,
    results,
    settings,
    site_table,
)
from fedssl.reports.page import Comparison, Figure, Page, RunPage, Section, render
from fedssl.reports.run_images import RunImages

LeftOut = list[tuple[str, str]]
LOOKED_AT = 4_000  # test images: a share of a confusion matrix is then known to a point or so
# Figures that need a run's images, by the method of RunImages that makes each.
DATA = {"Who holds what": "holdings", "What each client trains on": "views"}
ENCODER = {
    "Test images in feature space, PCA": "pca_map",
    "Test images in feature space, t-SNE": "tsne_map",
    "Which classes are confused": "confusion",
    "Nearest neighbours": "neighbours",
}


def write_report(
    runs: Sequence[Place],
    out: Place,
    *,
    images: int = LOOKED_AT,
    say: Say = say_nothing,
    view: View | None = None,
    allow_code: AllowCode = (),
) -> list[str]:
    """Writes the report of these runs to `out`; returns a line for each figure that had to be left out, and why.

    `images` test images are looked at (all training images up to 10,000 vote); 0 leaves these figures out, and with
    them all that would need the code of a network.

    >>> write_report(["runs/x"], "report.html", images=50)
    []
    """
    shown = view or QuietView()
    records = [RunRecord.read(path) for path in runs]
    out = Path(out)
    if not out.parent.is_dir():
        raise FedsslError(f"{out}: the folder {out.parent} does not exist: make it first, or choose another with -o")
    if out.is_dir():
        raise FedsslError(f"{out}: is a folder: name a file, such as {out / 'report.html'}")
    keep_freed_memory()
    opened = [FinishedRun.open(record.path, allow_code) if images else None for record in records]
    with shown:
        shown.begin("report", sum(_figures(record) for record in records))
        pages = [
            _run_page(record, run, f"run{number}", images, say, shown)
            for number, (record, run) in enumerate(zip(records, opened, strict=True), 1)
        ]
    html = render(Page(pages, __version__, _comparison(records) if len(records) > 1 else None))
    write_atomically(out, html)
    several = len(pages) > 1
    return [
        f"{f'{page.name}: ' if several else ''}{title} ({reason})" for page in pages for title, reason in page.left_out
    ]


def _cost(record: RunRecord) -> dict[str, run_figures.Maker]:
    return run_figures.COST | (run_figures.ON_REQUEST if record.profile else {})


def _learning(record: RunRecord) -> dict[str, run_figures.Maker]:
    return run_figures.LEARNING | (run_figures.AT_SITES if at_sites(record) else {})


def _figures(record: RunRecord) -> int:
    return len({**_learning(record), **run_figures.CLIENTS, **_cost(record), **DATA, **ENCODER})


def _run_page(record: RunRecord, run: FinishedRun | None, prefix: str, images: int, say: Say, view: View) -> RunPage:
    left_out: LeftOut = []
    looked = _look(record.name, run, images, say, view)

    def section(name: str, title: str, makers: dict[str, Any]) -> Section:
        bound = {
            title: partial(_of_images, looked, make) if isinstance(make, str) else partial(make, record)
            for title, make in makers.items()
        }
        figures = _collect(bound, left_out, prefix, view)
        spots = any(panel.spots for figure in figures for panel in figure.panels)
        sheet = looked.sheet if spots and isinstance(looked, RunImages) else ""
        return Section(f"{prefix}-{name}", title, "", figures=figures, sheet=sheet)

    sections = [
        section("learning", "Did it learn?", _learning(record)),
        section("encoder", "What the encoder sees", ENCODER),
        section("clients", "What the clients did", run_figures.CLIENTS),
        section("data", "The data", DATA),
        section("cost", "What it cost", _cost(record)),
    ]
    head, rows = _round_rows(record)
    sites_head, sites = site_table(record)
    return RunPage(
        id=prefix,
        name=record.name,
        title=prose.headline(record),
        story=prose.story(record, looked.num_classes if isinstance(looked, RunImages) else None),
        tiles=prose.tiles(record),
        warnings=prose.warnings(record),
        sections=[section for section in sections if section.figures],
        sites_head=sites_head,
        sites=sites,
        evaluation=[_evaluation_row(line) for line in record.evaluation],
        settings=run_figures.settings_rows(record.config),
        rounds_head=head,
        rounds=rows,
        environment=[(key, _text(value)) for key, value in flatten(record.environment).items()],
        left_out=left_out,
    )


def _look(name: str, run: FinishedRun | None, images: int, say: Say, view: View) -> RunImages | FedsslError:
    """A run's images and encoders, or why they cannot be looked at."""
    if run is None:
        return FedsslError("asked for with --images 0")
    say(f"{name}: looking at images and features")
    try:
        return RunImages.of(run, images, view.progress)
    except FedsslError as error:
        return error


def _of_images(looked: RunImages | FedsslError, name: str, prefix: str) -> Figure:
    if isinstance(looked, FedsslError):
        raise looked
    made: Figure = getattr(looked, name)(prefix)
    return made


def _collect(
    makers: Mapping[str, Callable[[str], Figure]], left_out: LeftOut, prefix: str, view: View
) -> tuple[Figure, ...]:
    figures = []
    for title, make in makers.items():
        view.progress(title, 0, 1)
        try:
            figures.append(make(prefix))
        except FedsslError as error:
            left_out.append((title, str(error)))
        view.advance()
    return tuple(figures)


def _comparison(records: Sequence[RunRecord]) -> Comparison:
    story = "The settings that differ, the results, and the curves on one axis; each run by itself is further down."
    chance = "A difference between two single runs may be chance: repeat them with other seeds before believing it."
    differing, equal_settings = parted(settings([record.config for record in records]))
    outcomes, equal_results = parted(results(records))
    return Comparison(
        story=[story, chance],
        names=[record.name for record in records],
        verdicts=[prose.verdict_tile(record.name, judged) for record in records if (judged := verdict(record))],
        differing=[(row.label, *row.values) for row in differing],
        results=[(row.label, *row.values) for row in outcomes],
        equal=[(row.label, row.values[0]) for row in equal_results + equal_settings],
        curves=run_figures.comparison(records),
    )


def _round_rows(record: RunRecord) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of rounds; a column that no round has is left out."""
    rounds = [metrics_of(one) for one in record.rounds]
    head = [name for name in COLUMNS if any(name in one for one in rounds)]
    return head, [[f"{one[name]:.6g}" if name in one else "" for name in head] for one in rounds]


def _evaluation_row(entry: Table) -> tuple[str, ...]:
    return evaluation_label(entry), evaluation_accuracy(entry), evaluation_basis(entry), f"{entry['n']:,}"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else setting_text(value)
