"""Where rules matter: the table of docs/results.md and the picture docs/rules.png, from the records of results/rules.

python -m scripts.rules
"""

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.trials import RESULTS, ROOT, Record, TrialList, fair_random, mean_and_spread, save_picture

PAGE, PICTURE = ROOT / "docs/results.md", ROOT / "docs/rules.png"
BEGIN, END = "<!-- rules -->\n", "<!-- end of rules -->"
Records = dict[str, list[Record]]


def read_records() -> Records:
    """By trial in the order of the list, those without a record left out."""
    rules = TrialList.read(RESULTS / "rules.toml")
    return {name: records for name, trial in rules.trials.items() if (records := rules.records(trial))}


def linear(records: list[Record]) -> float:
    return statistics.fmean(record["trained"]["linear"] for record in records)


def of_clients(records: list[Record]) -> dict[str, float]:
    """kNN of each client's own encoder, mean of the seeds."""
    return {name: statistics.fmean(one["clients"][name] for one in records) for name in records[0]["clients"]}


def won_back(records: list[Record], plain: list[Record]) -> float:
    """Against the plain average with the same seeds."""
    seeds = [record["seed"] for record in records]
    return linear(records) - linear([one for one in plain if one["seed"] in seeds])


def table(known: Records) -> str:
    """Each rule's share of what is lost from IID to non-IID clients, and the clients that fare worst and best."""
    lost = linear(known["iid"]) - linear(known["non-iid"])
    lines = [
        f"From central to IID clients {linear(known['central']) - linear(known['iid']):.1f} points are lost, from IID "
        f"to non-IID clients another {lost:.1f} (linear).",
        "",
        "| training | seeds | linear | won back | own encoders, kNN: worst and best client |",
        "|---|---|---|---|---|",
    ]
    for trial, records in known.items():
        clients = of_clients(records)
        back = f"{won_back(records, known['non-iid']):+.1f}" if trial.startswith("non-iid-") else ""
        worst, best = min(clients, key=clients.__getitem__), max(clients, key=clients.__getitem__)
        span = ", ".join(f"{clients[name]:.1f} ({name})" for name in dict.fromkeys((worst, best)))
        accuracy = mean_and_spread([record["trained"]["linear"] for record in records])
        lines.append(f"| `{trial}` | {len(records)} | {accuracy} | {back} | {span} |")
    return "".join(f"{line}\n" for line in lines)


def draw(known: Records) -> Figure:
    """Left the global encoder's linear probe, right kNN of the clients' own encoders; axes begin at random weights."""
    figure = Figure(figsize=(9.2, 0.42 * len(known) + 1.1), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(known)
    means = [linear(known[name]) for name in names]
    spreads = [_spread([record["trained"]["linear"] for record in known[name]]) for name in names]
    colours = ["grey" if name in ("central", "iid", "non-iid") else "tab:blue" for name in names]
    level = random_level(known, "linear")
    left.barh(names, [mean - level for mean in means], left=level, xerr=spreads, color=colours, height=0.6)
    left.bar_label(left.containers[-1], labels=[f"{mean:.1f}" for mean in means], padding=6, fontsize=8)
    for name in names:
        clients = of_clients(known[name])
        right.scatter(list(clients.values()), [name] * len(clients), s=18, color="tab:blue", alpha=0.7)
    _frame(left, known, "linear", "global encoder, linear probe, %")
    _frame(right, known, "knn", "each client's own encoder, kNN, %")
    left.invert_yaxis()
    return figure


def random_level(known: Records, measure: str) -> float:
    return max(fair_random(record, measure) for records in known.values() for record in records)


def _frame(axes: Axes, known: Records, measure: str, label: str) -> None:
    axes.margins(x=0.12)
    axes.set_xlabel(f"{label} (axis from random weights)", fontsize=8)
    axes.set(xlim=(random_level(known, measure), None))
    axes.tick_params(axis="both", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def shown_in(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(read_records()) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(shown_in(PAGE.read_text()))
    save_picture(draw(read_records()), PICTURE, read_records())
