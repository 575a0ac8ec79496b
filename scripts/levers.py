"""What one change of the recipe is worth for each method: a table of docs/results.md, from results/trials.

python -m scripts.levers
"""

from collections.abc import Iterator

from scripts.trials import RESULTS, ROOT, Trial, TrialList, as_toml

PAGE = ROOT / "docs/results.md"
BEGIN, END = "<!-- levers -->\n", "<!-- end of levers -->"
COMPANIONS = {"rounds", "augmentation.first_rounds"}  # fewer rounds of a dearer change, and what only goes with another
CIFAR10 = 50_000
LONGER = 3  # times as many images is another budget, not a lever; smaller views make up for less
Levers = dict[str, dict[str, str]]  # what was changed -> by method: points, and what it was changed in


def image_epochs(trial: Trial) -> int:
    held_out = trial.settings["data.validation_images"]
    images = trial.settings["data.train_images"] or CIFAR10 - held_out
    return int(images * trial.settings["rounds"] * trial.settings["local_training.epochs"])


def single_changes(trials: TrialList) -> Iterator[tuple[Trial, Trial, str]]:
    """Each trial that changes one thing of another at about the same cost, that other one, and the change."""
    for trial in trials.trials.values():
        changed = [key for key in trial.changed if key not in COMPANIONS]
        if trial.like and len(changed) == 1:
            base = trials.trials[trial.like]
            if image_epochs(trial) <= LONGER * image_epochs(base):
                yield trial, base, f"{changed[0]} {as_toml(trial.changed[changed[0]])}"


def levers(trials: TrialList) -> Levers:
    known: Levers = {}
    for trial, base, change in single_changes(trials):
        if (after := trials.records(trial)) and (before := trials.records(base)):
            points = round(after[0]["trained"]["linear"] - before[0]["trained"]["linear"], 1) + 0.0  # never -0.0
            method = trial.settings.get("method.name", "byol")
            known.setdefault(change, {})[method] = f"{points:+.1f} (`{base.name}`)"
    return known


def table(known: Levers) -> str:
    methods = list(dict.fromkeys(method for by_method in known.values() for method in by_method))
    lines = [
        "Points of linear accuracy by one change, in brackets of which trial, at about the same cost. Empty:",
        "not tried, or no setting of the method.",
        "",
        f"| change | {' | '.join(methods)} |",
        f"|---|{'---|' * len(methods)}",
        *(f"| {change} | {' | '.join(by.get(method, '') for method in methods)} |" for change, by in known.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def shown_in(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(levers(TrialList.read(RESULTS / "trials.toml"))) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(shown_in(PAGE.read_text()))
