"""The picture docs/autoscaler.png: FedEMA (autoscaler) beside FedBYOL against the number of rounds, from records.

python -m scripts.autoscaler
"""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from fedssl.paper.catalogue import find_studies
from fedssl.paper.comparison import Comparison
from fedssl.paper.scales import find_scale
from scripts.paper_records import RECORDS
from scripts.trials import RESULTS, ROOT, TrialList, save_picture

PICTURE = ROOT / "docs/autoscaler.png"
ROWS = {"fedbyol": "FedBYOL", "fedema": "FedEMA (autoscaler, τ = 0.7)"}
Accuracies = dict[int, list[float]]  # by number of rounds: linear, one number per seed


def accuracies(results: Path = RESULTS, records: Path = RECORDS) -> dict[str, Accuracies]:
    """Of each algorithm, for every number of rounds that both have a record of."""
    listed, of_paper = _of_list(results), _at_scale("night", records)
    known = {name: listed[name] | of_paper[name] for name in ROWS}
    both = sorted(set.intersection(*(set(of_one) for of_one in known.values())))
    return {name: {rounds: of_one[rounds] for rounds in both} for name, of_one in known.items()}


def _of_list(results: Path) -> dict[str, Accuracies]:
    """Trials are named ALGORITHM-ROUNDS."""
    trials, known = TrialList.read(results / "rounds.toml"), {name: Accuracies() for name in ROWS}
    for trial in trials.trials.values():
        if records := trials.records(trial):
            name = trial.name.rsplit("-", 1)[0]
            known[name][trial.settings["rounds"]] = [record["trained"]["linear"] for record in records]
    return known


def _at_scale(name: str, records: Path) -> dict[str, Accuracies]:
    """What `fedssl paper` made, with the number of rounds of its scale."""
    (study,), scale = find_studies(["linear-evaluation"]), find_scale(name)
    known = {}
    for algorithm, row in ROWS.items():
        made = Comparison.of(study, scale, records, 3, [row], ["CIFAR-10, Non-IID"])
        (result,), run = made.results, next(iter(made.plan.runs.values()))
        known[algorithm] = {run.config.run.rounds: result.measured.known} if result.measured.known else {}
    return known


def draw(known: dict[str, Accuracies]) -> Figure:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for name, by_rounds in known.items():
        means = [statistics.fmean(values) for values in by_rounds.values()]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in by_rounds.values()]
        axes.errorbar(list(by_rounds), means, spreads, marker="o", ms=4, capsize=3, label=ROWS[name])
    ticks = list(known["fedema"])
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="rounds of the run (two epochs each)", ylabel="linear probe, % of test images")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return figure


if __name__ == "__main__":
    save_picture(draw(accuracies()), PICTURE, accuracies())
