"""The numbers of docs/tutorial.md: its own commands are run, what came of them is kept in results/tutorial.json.

python -m scripts.tutorial run      runs the page's steps 1, 2, 3 and 6, in a few minutes, with one thread
python -m scripts.tutorial tables   writes the sentences of the page from the record
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssl.experiment.records.run_record import read_json
from scripts.trials import RESULTS, ROOT

PAGE, RECORD = ROOT / "docs/tutorial.md", RESULTS / "tutorial.json"
STEPS = ("run", "evaluate", "finetune")
RESULT = ("accuracy", "interval_95", "correct", "n")
Record = dict[str, Any]


def commands(page: str) -> list[str]:
    """The page's commands of these steps; another run is started at its end, which is not among them."""
    shell = "".join(re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)).replace("\\\n", "")
    lines = [line for line in shell.splitlines() if line.split()[1] in STEPS]
    return lines[: len(STEPS)]


def make_record() -> Record:
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory(prefix="fedssl-tutorial-") as name:
        folder = Path(name)
        images = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
        _call(folder, [sys.executable, "-c", images])
        for line in commands(page):
            _call(folder, [sys.executable, "-m", *shlex.split(line)])
        run = folder / "runs/photos"
        environment, summary = read_json(run / "environment.json"), read_json(run / "summary.json")
        lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
        return {
            "commands": commands(page),
            "seed": 0,
            "rounds": summary["rounds"],
            "core_seconds": {part: round(seconds, 1) for part, seconds in summary["core_seconds"].items()},
            "trained": _best(lines, "global"),
            "random": _best(lines, "random"),
            "classifier": _result(read_json(folder / "classifier/result.json")),
            "hardware": f"{environment['cpu']}, {environment['torch_threads']} thread",
            "versions": {"python": environment["python"], **environment["packages"]},
            "commit": environment["git_commit"],
            "date": datetime.now(UTC).date().isoformat(),
        }


def _call(folder: Path, command: list[str]) -> None:
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _best(lines: list[Record], encoder: str) -> Record:
    """The linear probe of this encoder, with the better of its two BatchNorms."""
    own = [line for line in lines if (line["encoder"], line["protocol"]) == (encoder, "linear")]
    return _result(max(own, key=lambda line: line["accuracy"]))


def _result(line: Mapping[str, Any]) -> Record:
    return {name: line[name] for name in RESULT}


def sentences(record: Record) -> dict[str, str]:
    """What the page says, by the name of its marks."""
    trained, random, classifier = (record[name] for name in ("trained", "random", "classifier"))
    training = record["core_seconds"]["training"]
    return {
        "encoder": (
            f"On the {trained['n']} test images of those above the linear probe had {_accuracy(trained)}, of a random "
            f"encoder {_accuracy(random)}, by guessing 20 %: seed {record['seed']}, {record['rounds']} rounds, "
            f"{training:.0f} core-seconds of training ({record['hardware']}, {record['date']}; "
            "`results/tutorial.json`). [results.md](results.md) has CIFAR-10 and photos."
        ),
        "classifier": (
            "A new head, and all of the network trained (`--head-only`: the head alone). Learnt from "
            f"{600 - classifier['n']} of the images above, it had {_accuracy(classifier)} of the other "
            f"{classifier['n']} right. The encoder had seen these without labels: to publish a number, test with "
            '`--test` on others. In Python: `fedssl.load_classifier("classifier").predict(images)`.'
        ),
    }


def _accuracy(result: Record) -> str:
    low, high = (100 * value for value in result["interval_95"])
    return f"{100 * result['accuracy']:.1f} % (95 % interval {low:.1f}–{high:.1f})"


def filled(page: str, record: Record) -> str:
    for name, sentence in sentences(record).items():
        begin, end = f"<!-- tutorial: {name} -->\n", "<!-- end of tutorial -->"
        before, rest = page.split(begin)
        text = textwrap.fill(sentence, 120, break_on_hyphens=False, break_long_words=False)
        page = f"{before}{begin}{text}\n{end}{rest.split(end, 1)[1]}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        RECORD.write_text(json.dumps(make_record(), indent=1) + "\n")
    elif sys.argv[1:] == ["tables"]:
        PAGE.write_text(filled(PAGE.read_text(), read_json(RECORD)))
    else:
        sys.exit(__doc__)
