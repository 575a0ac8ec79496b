"""Runs beside each other: which settings differ, and what came out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedssl.core.files import size_text
from fedssl.evaluation.score import Best
from fedssl.experiment.config.texts import NOT_SET, flatten, setting_text
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.site_accuracy import MEAN_TITLE, Measured, SiteAccuracy, at_sites, mean_of
from fedssl.experiment.records.verdict import best_text, interval, points, verdict

SHORT = {"linear": "linear probe", "knn": "kNN"}


@dataclass(frozen=True)
class Row:
    """One setting or result with a text for each run."""

    label: str
    values: tuple[str, ...]


def settings(configs: Sequence[Table]) -> list[Row]:
    """All settings of these configs, in the order in which they are first met."""
    flat = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [Row(key, tuple(setting_text(one.get(key)) for one in flat)) for key in keys]


def parted(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(those that differ between the runs, those that are equal in all); of a single run everything is shown."""
    differ = [row for row in rows if len(row.values) == 1 or len(set(row.values)) > 1]
    return differ, [row for row in rows if row not in differ]


def results(records: Sequence[RunRecord]) -> list[Row]:
    """Verdict, accuracies and gains, mean mu, cost, and what was evaluated later; what nobody has is left out."""
    columns: list[tuple[str, Callable[[RunRecord], str]]] = [
        ("status", lambda r: r.status),
        ("rounds", lambda r: str(r.summary.get("rounds", len(r.trained)))),
        ("verdict", lambda r: judged.word if (judged := verdict(r)) else NOT_SET),
        *_accuracies("knn", "kNN"),
        *_accuracies("linear", "linear probe"),
        ("mean mu", lambda r: number(r.summary.get("mean_mu"))),
        ("share of EMA updates", lambda r: percent(r.summary.get("ema_share"))),
        ("last loss", lambda r: number(r.summary.get("final_loss"))),
        ("time", lambda r: duration(r.summary.get("seconds"))),
        ("sent, up + down", lambda r: traffic(r.summary)),
    ]
    rows = [Row(label, tuple(text(record) for record in records)) for label, text in columns]
    filled = [*rows, *_site_rows(records), *_evaluation_rows(records)]
    return [row for row in filled if set(row.values) != {NOT_SET}]


def _accuracies(measure: str, label: str) -> list[tuple[str, Callable[[RunRecord], str]]]:
    """Before and after training, each in the BatchNorm mode that suits the encoder better, and the gain."""

    def text(best: Best | None) -> str:
        return best_text(best) if best else NOT_SET

    return [
        (f"{label}, before training", lambda r: text(r.initial_best(measure))),
        (f"{label}, trained", lambda r: text(r.trained_best(measure))),
        (f"{label}, gain", lambda r: points(gain) if (gain := r.gain(measure)) else NOT_SET),
    ]


def _site_rows(records: Sequence[RunRecord]) -> list[Row]:
    """What sites found with their own labels: the mean, then site by site, the worst of the first run first."""
    by_run, rows = [at_sites(record) for record in records], []
    for measure, label in SHORT.items():
        texts = [{one[measure].title: site_text(one[measure]) for one in sites} for sites in by_run]
        means = [site_text(mean_of(sites, measure)) if sites else NOT_SET for sites in by_run]
        rows.append(Row(f"{label} at the sites, mean", tuple(means)))
        titles = dict.fromkeys(title for one in texts for title in one)
        rows += [Row(f"{label} at {title}", tuple(one.get(title, NOT_SET) for one in texts)) for title in titles]
    return rows


def site_text(one: SiteAccuracy) -> str:
    """`61.2 % (+4.1)`, with what was gained over the first encoder, in points."""
    return percent(one.trained) + ("" if one.baseline is None else f" ({100 * (one.trained - one.baseline):+.1f})")


def site_lines(record: RunRecord) -> list[Measured]:
    """The worst site first, the mean last; nothing where no site sent counts."""
    sites = at_sites(record)
    return [*sites, {name: mean_of(sites, name) for name in SHORT}] if len(sites) > 1 else sites


def site_table(record: RunRecord) -> tuple[list[str], list[list[str]]]:
    """Head and rows, with the accuracy before training and after it, and the gain with its interval."""
    head = [f"{label}{what}" for label in SHORT.values() for what in ("", ", gain")]
    return ["site", "test images", *head], [_site_row(one) for one in site_lines(record)]


def _site_row(one: Measured) -> list[str]:
    title, n = one["knn"].title, one["knn"].n
    cells = [title, f"{n:,}"]
    for accuracy in (one[name] for name in SHORT):
        before = "" if accuracy.baseline is None else f"{100 * accuracy.baseline:.1f} → "
        between = f" ({interval(accuracy.gain)})" if accuracy.gain and title != MEAN_TITLE else ""
        gained = f"{100 * accuracy.gain.difference:+.1f}{between}" if accuracy.gain else NOT_SET
        cells += [before + percent(accuracy.trained), gained]
    return cells


def _evaluation_rows(records: Sequence[RunRecord]) -> list[Row]:
    by_label = [{evaluation_label(entry): _evaluation_text(entry) for entry in record.evaluation} for record in records]
    labels = dict.fromkeys(label for one in by_label for label in one)
    return [Row(label, tuple(one.get(label, NOT_SET) for one in by_label)) for label in labels]


def evaluation_label(entry: Table) -> str:
    """What was evaluated, in words: an entry of the headline that `fedssl evaluate` put into summary.json."""
    scope = "" if entry["test_images"] == "all" else ", own classes"
    return (
        f"{entry['protocol']} ({entry['variant']}) on {entry['data']}, {entry['encoder']}{scope}, "
        f"BatchNorm {entry['batchnorm']}"
    )


def evaluation_accuracy(entry: Table) -> str:
    text = percent(entry["accuracy"])
    return text if entry["sd"] is None else text.replace(" %", f" ± {100 * entry['sd']:.1f} %")


def evaluation_basis(entry: Table) -> str:
    """What the number rests on: a 95 % interval over images, or a spread over clients or seeds."""
    if entry["interval_95"] is not None:
        low, high = entry["interval_95"]
        return f"{100 * low:.1f}–{100 * high:.1f} %"
    return f"{entry['clients']} clients" if entry["clients"] else f"{entry['seeds']} seeds"


def _evaluation_text(entry: Table) -> str:
    return f"{evaluation_accuracy(entry)} ({evaluation_basis(entry)})"


def percent(share: Any) -> str:
    return NOT_SET if share is None else f"{100 * share:.1f} %"


def number(value: Any) -> str:
    return NOT_SET if value is None else f"{value:.3f}"


def duration(seconds: Any) -> str:
    """`8.2 s`, `3 min 05 s`, `2 h 14 min`."""
    if seconds is None:
        return NOT_SET
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def traffic(summary: Table) -> str:
    if "bytes_up" not in summary:
        return NOT_SET
    return size_text(summary["bytes_up"] + summary.get("bytes_down", 0))
