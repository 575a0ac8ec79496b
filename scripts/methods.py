"""The numbers of docs/methods.md that are no table of runs: what a step costs and how accurate each method is.

python -m scripts.methods     fills them in from results/step-costs.json and results/methods/
"""

import re
from pathlib import Path
from typing import Any

from fedssl.experiment.records.run_record import read_json
from scripts.trials import RESULTS, ROOT, TrialList, mean_and_spread

PAGE, COSTS = ROOT / "docs/methods.md", RESULTS / "step-costs.json"
ELSEWHERE = {"+fedema": "none per step", **dict.fromkeys(("+l-dawa", "+fedavgm", "+fedadam"), "server only")}  # costs
MARKS = {name: (f"<!-- {name} -->\n", f"<!-- end of {name} -->") for name in ("methods", "step costs")}


def step_costs() -> dict[str, Any]:
    return read_json(COSTS)["steps"] if COSTS.exists() else {}


def with_numbers(row: str) -> str:
    """A row of the table to choose from: its last two cells are the cost and the accuracy of the one it names."""
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    name = cells[0].strip("`")
    known = TrialList.read(RESULTS / "methods.toml")
    trial = known.trials.get(name[1:] if name.startswith("+") else name if name.startswith("fed") else f"fed{name}")
    accuracies = [one["trained"]["linear"] for one in known.records(trial)] if trial else []
    cost = step_costs().get(name)
    cells[4:] = [
        f"{cost['of_byol']:.2f}" if cost else ELSEWHERE.get(name, "–"),
        mean_and_spread(accuracies) if accuracies else "–",
    ]
    return f"| {' | '.join(cells)} |"


def cost_table() -> str:
    lines = ["| a step of | plain loop, ms | ours, ms | ours / plain | of BYOL's |", "|---|---|---|---|---|"]
    for name, cost in step_costs().items():
        ratio = cost["ours_ms"] / cost["plain_ms"]
        numbers = f"{cost['plain_ms']:.1f} | {cost['ours_ms']:.1f} | {ratio:.2f} | {cost['of_byol']:.2f}"
        lines.append(f"| `{name}` | {numbers} |")
    return "".join(f"{line}\n" for line in lines)


def filled(page: str) -> str:
    """The page with the numbers of today's records."""
    head, rule, *rows = _between(page, "methods").splitlines()
    page = _put(page, "methods", "".join(f"{line}\n" for line in (head, rule, *map(with_numbers, rows))))
    return _put(page, "step costs", cost_table())


def _between(page: str, name: str) -> str:
    begin, end = MARKS[name]
    return page.split(begin)[1].split(end)[0]


def _put(page: str, name: str, table: str) -> str:
    begin, end = MARKS[name]
    return re.sub(f"(?s)({begin}).*?({end})", lambda match: match[1] + table + match[2], page)


if __name__ == "__main__":
    Path(PAGE).write_text(filled(PAGE.read_text()))
