"""The picture docs/frontier.png: what the trials of the CPU recipe reached against what they cost, from their records.

python -m scripts.frontier
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from scripts.trials import RESULTS, ROOT, Record, TrialList, fair_random, save_picture

PICTURE = ROOT / "docs/frontier.png"
TICKS = (1, 2, 5, 20, 60)  # core-minutes


def read_records() -> dict[str, list[Record]]:
    """By method."""
    trials, known = TrialList.read(RESULTS / "trials.toml"), dict[str, list[Record]]()
    for trial in trials.trials.values():
        if records := trials.records(trial):
            known.setdefault(trial.settings.get("method.name", "byol"), []).extend(records)
    return known


def best_so_far(records: Sequence[Record]) -> list[Record]:
    """Those that no cheaper one beats, cheapest first: the frontier."""
    frontier: list[Record] = []
    for record in sorted(records, key=minutes):
        if not frontier or record["trained"]["linear"] > frontier[-1]["trained"]["linear"]:
            frontier.append(record)
    return frontier


def minutes(record: Record) -> float:
    return float(record["core_seconds"]["training"]) / 60


def draw(by_method: dict[str, list[Record]]) -> Figure:
    """One colour per method; the line joins what no cheaper trial beats."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for method, records in by_method.items():
        axes.scatter([minutes(one) for one in records], [one["trained"]["linear"] for one in records], label=method)
    everything = [record for records in by_method.values() for record in records]
    frontier = best_so_far(everything)
    axes.plot([minutes(one) for one in frontier], [one["trained"]["linear"] for one in frontier], color="grey", lw=1)
    labelled = 0.0  # the accuracy of the last one with a label: labels of near points would overlap
    for one in frontier:
        if (accuracy := one["trained"]["linear"]) > labelled + 1:
            side = "left" if one is frontier[0] else "right"  # of a rising line there is room above and to the left
            place = (minutes(one), accuracy)
            axes.annotate(one["name"], place, (-2, 6), textcoords="offset points", ha=side, fontsize=8)
            labelled = accuracy
    level = max(fair_random(record, "linear") for record in everything)
    axes.axhline(level, color="grey", ls="--", lw=1, label="best random weights")
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.set(xlabel="core-minutes of training", ylabel="linear probe, % of 5,000 held-out images")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    return figure


if __name__ == "__main__":
    save_picture(draw(read_records()), PICTURE, read_records())
