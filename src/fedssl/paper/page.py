"""Comparisons with the paper as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.experiment.config.texts import flatten, setting_text
from fedssl.paper.comparison import Comparison
from fedssl.paper.figures import figures_of
from fedssl.paper.scales import Scale
from fedssl.reports.page import Chapter, Chapters, Figure, TablePart, render


def write_page(comparisons: Sequence[Comparison], out: Path) -> None:
    """A chapter for each comparison, then what the scale changes."""
    scale = comparisons[0].scale
    page = Chapters(
        title=comparisons[0].study.title if len(comparisons) == 1 else "The experiments of the paper",
        eyebrow=f"Federated self-supervised learning · scale {scale.name}",
        story=["Divergence-aware Federated Self-Supervised Learning (Zhuang, Wen & Zhang, ICLR 2022), run again."],
        chapters=[
            chapter(one, f"chapter-{one.study.name}", f"{one.study.number}: {one.study.title}", figures_of(one))
            for one in comparisons
        ],
        settings=scale_tables(scale),
    )
    write_chapters(page, out)


def chapter(comparison: Comparison, identifier: str, title: str, figures: Sequence[Figure]) -> Chapter:
    notes = list(comparison.notes().items())
    tables = comparison.tables()
    return Chapter(
        id=identifier, title=title, story=comparison.sentences(), tables=tables, figures=figures, notes=notes
    )


def write_chapters(page: Chapters, out: Path) -> None:
    if not out.parent.is_dir():
        raise FedsslError(f"{out}: the folder {out.parent} does not exist: make it first, or choose another with -o")
    write_atomically(out, render(page))


def scale_tables(scale: Scale) -> list[TablePart]:
    """What the scale changes and why, and how values that experiments vary are carried over."""
    changed = [[change.key, setting_text(change.value), _when(change.when), change.reason] for change in scale.changes]
    varied = []
    for rule in scale.varied:
        how = [f"x {rule.times:g}"] if rule.times is not None else []
        how += [f"{old} → {new}" for old, new in rule.values.items()]
        how += [f"{value}: left out" for value in rule.left_out]
        reason = "; ".join([*([rule.reason] if rule.reason else []), *rule.left_out.values()])
        varied.append([rule.key, ", ".join(how), ", ".join(rule.experiments) or "all", reason])
    epochs = [[name, str(count)] for name, count in scale.evaluation_epochs.items()]
    tables = [
        TablePart("Settings that are not the preset's", ["setting", "value", "where", "why"], changed),
        TablePart("Values that an experiment sets itself", ["setting", "carried over", "experiments", "why"], varied),
        TablePart("Epochs of evaluation", ["protocol", "epochs"], epochs),
    ]
    return [table for table in tables if table.rows]


def _when(when: dict[str, object]) -> str:
    texts = [f"{key} is {' or '.join(map(str, values))}" for key, values in flatten(when).items()]
    return " and ".join(texts) or "everywhere"
