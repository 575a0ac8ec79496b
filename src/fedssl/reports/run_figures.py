"""The figures that need nothing but a run's records: accuracy, loss, divergence, mu, spread of features, cost."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedssl.core.errors import FedsslError
from fedssl.core.stopwatch import PARTS, UNKNOWN
from fedssl.experiment.config.texts import setting_text
from fedssl.experiment.records.metrics import best_metric, metrics_of
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.site_accuracy import site_title
from fedssl.experiment.records.verdict import COLLAPSED_BELOW, start
from fedssl.reports.page import Figure, Section
from fedssl.reports.plots import Series, bars, curves

MEAN = "mean over clients"


def accuracy(record: RunRecord, prefix: str) -> Figure:
    series = [
        replace(_over_rounds(record, name, label, 100, joined=joined), level=_in_percent(record.baseline(name)))
        for name, label, joined in (("knn", "kNN", True), ("linear", "linear probe", False))
    ]
    series = [one for one in series if any(value is not None for value in one.y)]
    if not series:
        raise FedsslError("no accuracy was recorded")
    first, last = record.baseline("knn"), record.trained_best("knn")
    alt = f"kNN accuracy over rounds: {_ends(first, last.accuracy if last else None)}"
    caption = f"Share of test images classified correctly, with frozen features. {_first_and_last(start(record))}"
    caption = f"{caption} Dashed: the level of round 0."
    drawing = curves(f"{prefix}-accuracy-plot", alt, series, "accuracy in %", zero=False)
    return Figure.of(f"{prefix}-accuracy", "Accuracy over rounds", caption, drawing)


def _first_and_last(first: str) -> str:
    return (
        f"Round 0 is {first} in the BatchNorm mode that suits it better; so is the last round, those between are in "
        "the mode that the run watches."
    )


def _in_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def loss(record: RunRecord, prefix: str) -> Figure:
    series = _per_client(record, "loss", "no round was finished")
    ends = [record.trained[0].get("loss"), record.trained[-1].get("loss")]
    alt = f"training loss of each client over rounds, on average from {ends[0]:.3f} to {ends[1]:.3f}"
    caption = "Mean over each client's last local epoch. Losses of different methods cannot be compared."
    drawing = curves(f"{prefix}-loss-plot", alt, series, "loss", zero=False)
    return Figure.of(f"{prefix}-loss", "Training loss", caption + _only_mean(series), drawing)


def sites(record: RunRecord, prefix: str) -> Figure:
    """The linear probe at each site."""
    points: dict[str, list[tuple[int, float]]] = {}
    for one in record.rounds:
        for counted in one.get("at_sites", {}).get("counts", []):
            share = 100 * counted["linear"] / counted["n"]
            points.setdefault(site_title(record, counted), []).append((one["round"], share))
    series = [Series(title, [x for x, _ in pairs], [y for _, y in pairs]) for title, pairs in sorted(points.items())]
    alt = f"linear probe at each site over rounds, {_range(series)} %"
    caption = "Share of each site's own test images that a linear layer on frozen features classifies correctly."
    drawing = curves(f"{prefix}-sites-plot", alt, series, "accuracy in %", zero=False)
    return Figure.of(f"{prefix}-sites-figure", "Linear probe at the sites", caption, drawing)


def divergence(record: RunRecord, prefix: str) -> Figure:
    series = _per_client(record, "divergence", "no divergence was recorded (one round, or nothing is shared)")
    alt = f"divergence of each client over rounds, {_range(series)}"
    caption = f"For each client, {_divergence_text(record)}."
    drawing = curves(f"{prefix}-divergence-plot", alt, series, "divergence (norm of weights)")
    return Figure.of(f"{prefix}-divergence", "Divergence of each client", caption + _only_mean(series), drawing)


def _divergence_text(record: RunRecord) -> str:
    """Which two encoders are compared, and how; a rule that measures none is recorded with the distance to W_g."""
    rule = record.config["update_rule"]
    moved, drifted = "how far its own last training moved its encoder", "how far its encoder is from the global one"
    norms = {
        "mean-conv": "mean over convolutions",
        "mean-matrix": "mean over weight matrices",
        "l2": "Euclidean norm of the weights' difference",
    }
    norm = str(rule.get("norm", "l2"))
    return f"{moved if rule.get('between') == 'before-after' else drifted} ({norms.get(norm, norm)})"


def mu(record: RunRecord, prefix: str) -> Figure:
    rule = record.config["update_rule"].get("name")
    series = _per_client(record, "mu", f"the update rule {rule!r} recorded no mu")
    alt = f"mu of each client over rounds, {_range(series)}"
    caption = (
        "The share of its own network that a client keeps when a round starts: 0 takes the global one, 1 ignores it."
    )
    drawing = curves(f"{prefix}-mu-plot", alt, series, "mu (share of own weights)", top=1.02)
    return Figure.of(f"{prefix}-mu", "mu of each client", caption + _only_mean(series), drawing)


def ema_share(record: RunRecord, prefix: str) -> Figure:
    series = _over_rounds(record, "ema_share", "EMA updates", 100)
    if not any(series.y):
        raise FedsslError("no client mixed by EMA in any round")
    alt = f"share of clients that mixed by EMA over rounds, {_range([series])} %"
    caption = "The others took the global network as it was: in their first round, or after they had missed one."
    drawing = curves(f"{prefix}-ema-plot", alt, [series], "clients that mixed by EMA, in %", top=104)
    return Figure.of(f"{prefix}-ema", "Share of EMA updates", caption, drawing)


def collapse(record: RunRecord, prefix: str) -> Figure:
    series = _per_client(record, "feature_std", "no round was finished")
    alt = f"spread of the features of each client over rounds, {_range(series)}"
    caption = (
        f"About 1 when features spread over the sphere, 0 when every image looks alike; below the dashed line "
        f"({COLLAPSED_BELOW}) they have collapsed."
    )
    drawing = curves(
        f"{prefix}-collapse-plot", alt, series, "spread of projections (0 to 1)", threshold=COLLAPSED_BELOW
    )
    return Figure.of(f"{prefix}-collapse", "Collapse measure", caption + _only_mean(series), drawing)


def seconds(record: RunRecord, prefix: str) -> Figure:
    rounds = [one for one in record.trained if one.get("seconds") is not None]
    if not rounds:
        raise FedsslError("no round was finished")
    stacks = {"round": [float(one["seconds"]) for one in rounds]}
    mean = statistics.fmean(stacks["round"])
    averaging = 1000 * statistics.fmean(float(one.get("aggregation_seconds", 0)) for one in rounds)
    caption = (
        f"Training and averaging, {mean:.1f} s a round on average, {averaging:.0f} ms of it for averaging; "
        "evaluation is not counted."
    )
    alt = f"seconds of each round, {mean:.1f} on average"
    drawing = bars(f"{prefix}-seconds-plot", alt, [one["round"] for one in rounds], stacks, "seconds per round")
    return Figure.of(f"{prefix}-seconds", "Time", caption, drawing)


def profile(record: RunRecord, prefix: str) -> Figure:
    rounds = record.profile
    if not rounds:
        raise FedsslError("the run was not started with --profile")
    names = {**PARTS, UNKNOWN: "anything else"}
    stacks = {text: [max(float(one["parts"][name]), 0.0) for one in rounds] for name, text in names.items()}
    wall = sum(float(one["wall"]) for one in rounds)
    shares = {text: 100 * sum(values) / wall for text, values in stacks.items()}
    listed = ", ".join(f"{text} {share:.1f} %" for text, share in sorted(shares.items(), key=lambda item: -item[1]))
    workers = max(int(one["workers"]) for one in rounds)
    side_by_side = f" {workers} workers side by side: their time counts 1/{workers}." if workers > 1 else ""
    caption = f"Of {wall:.1f} s in all: {listed}. Round 0 is the evaluation before training.{side_by_side}"
    drawing = bars(f"{prefix}-profile-plot", listed, [one["round"] for one in rounds], stacks, "seconds per round")
    return Figure.of(f"{prefix}-profile", "Where the time went", caption, drawing)


def traffic(record: RunRecord, prefix: str) -> Figure:
    rounds = [(one["round"], metrics_of(one)) for one in record.trained]
    stacks = {
        "from the clients": [one["bytes_up"] / 1e6 for _, one in rounds],
        "to the clients": [one["bytes_down"] / 1e6 for _, one in rounds],
    }
    total = sum(map(sum, stacks.values()))
    if not total:
        raise FedsslError("no round was finished")
    caption = (
        f"Weights between server and clients, {total / len(rounds):.2f} MB per round on average (1 MB = 10⁶ bytes)."
    )
    alt = f"megabytes of each round, {total:.1f} in all"
    drawing = bars(f"{prefix}-bytes-plot", alt, [number for number, _ in rounds], stacks, "MB per round")
    return Figure.of(f"{prefix}-bytes", "Traffic", caption, drawing)


COMPARED = {
    "knn": f"Share of test images classified correctly. {_first_and_last('the encoder before training')}",
    "loss": "Losses of different methods cannot be compared.",
    "mu": "The share of its own network that a client keeps when a round starts.",
    "divergence": "The same measure in all runs.",
    "feature_std": f"0 when every image looks alike; below {COLLAPSED_BELOW} the features have collapsed.",
    "seconds": "Training and averaging; depends on the machine and what else it does.",
}
Maker = Callable[[RunRecord, str], Figure]
LEARNING: dict[str, Maker] = {"Accuracy over rounds": accuracy, "Training loss": loss}
AT_SITES: dict[str, Maker] = {"Linear probe at the sites": sites}
CLIENTS: dict[str, Maker] = {
    "Divergence of each client": divergence,
    "mu of each client": mu,
    "Share of EMA updates": ema_share,
    "Collapse measure": collapse,
}
COST: dict[str, Maker] = {"Time": seconds, "Traffic": traffic}
ON_REQUEST: dict[str, Maker] = {"Where the time went": profile}


def comparison(records: Sequence[RunRecord]) -> Section:
    """The curves of several runs on one axis each; a curve that no run has is not drawn."""
    measures = [
        ("knn", "kNN accuracy", "accuracy in %", 100.0, False),
        ("loss", "Training loss, mean over clients", "loss", 1.0, False),
        ("mu", "mu, mean over clients", "mu (share of own weights)", 1.0, True),
        ("divergence", "Divergence, mean over clients", "divergence (norm of weights)", 1.0, True),
        ("feature_std", "Collapse measure, mean over clients", "spread of projections (0 to 1)", 1.0, True),
        ("seconds", "Time", "seconds per round", 1.0, True),
    ]
    figures = []
    for name, title, label, factor, zero in measures:
        series = [_over_rounds(record, name, record.name, factor) for record in records]
        known = [one for one in series if any(value is not None for value in one.y)]
        if known:
            alt = f"{title} over rounds for {', '.join(one.label for one in known)}"
            drawing = curves(f"compared-{name}-plot", alt, series, label, zero=zero)
            missing = ", ".join(one.label for one in series if one not in known)
            caption = f"Not recorded by {missing}." if missing else COMPARED.get(name, "")
            meanings = {one.name: _divergence_text(one) for one in records}
            if name == "divergence" and len(set(meanings.values())) > 1:
                listed = "; ".join(f"{run}: {meaning}" for run, meaning in meanings.items())
                caption = f"Not the same measure, so compare shapes only. {listed}."
            figures.append(Figure.of(f"compared-{name}", title, caption, drawing))
    return Section("curves", "Curves on one axis", "", figures=tuple(figures))


def _over_rounds(record: RunRecord, name: str, label: str, factor: float = 1.0, joined: bool = True) -> Series:
    """Accuracies are the better of the BatchNorm modes that were taken: of the first and the last round, both."""
    values = [best_metric(one, name) for one in record.rounds]
    y = [None if value is None else factor * value for value in values]
    return Series(label, [one["round"] for one in record.rounds], y, joined=joined)


def _per_client(record: RunRecord, name: str, otherwise: str) -> list[Series]:
    """One curve per client, or of secure sums the mean of all; where there is no such value, an error that says why."""
    points: dict[int, list[tuple[int, float]]] = {}
    for one in record.trained:
        for client in one["clients"]:
            if client.get(name) is not None:
                points.setdefault(client["client"], []).append((one["round"], client[name]))
    means = [(one["round"], one[name]) for one in record.trained if one.get("n") and one.get(name) is not None]
    if not points and means:
        return [Series(MEAN, [x for x, _ in means], [y for _, y in means])]
    if not points:
        raise FedsslError(otherwise)
    return [Series(record.client(k), [x for x, _ in points[k]], [y for _, y in points[k]]) for k in sorted(points)]


def _only_mean(series: Sequence[Series]) -> str:
    return (
        " Uploads were summed securely: the mean over clients is all that is known." if series[0].label == MEAN else ""
    )


def _range(series: Sequence[Series]) -> str:
    values = [value for one in series for value in one.y if value is not None]
    return f"between {min(values):.3g} and {max(values):.3g}"


def _ends(first: float | None, last: float | None) -> str:
    texts = ["not measured" if value is None else f"{100 * value:.1f} %" for value in (first, last)]
    return f"{texts[0]} before training, {texts[1]} at the end"


def settings_rows(config: Table) -> list[tuple[str, list[tuple[str, str]]]]:
    """(table, rows) for each table of a config, the settings of the run itself first."""
    top = [(key, setting_text(value)) for key, value in config.items() if not isinstance(value, dict)]
    tables = [(name, table) for name, table in config.items() if isinstance(table, dict) and table]
    return [("run", top), *((name, [(k, setting_text(v)) for k, v in table.items()]) for name, table in tables)]
