"""The README's commands, to be run as they stand there; only rounds, epochs and images are fewer."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TINY_RUN = ["--set", "rounds=1", "--set", "evaluation.linear_epochs=2", "--set", "threads=1"]
SHORT = {
    "run": TINY_RUN,
    "server": TINY_RUN,
    "report": ["--images", "20"],
    "finetune": ["--epochs", "1", "--hidden", "32"],
}
OF_A_DEPLOYMENT = ("server", "client")  # wait for each other


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def lines():
    """The words of every line to be typed into a shell, in order."""
    return [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines() if line]


def commands():
    """What stands behind `fedssl` in these."""
    return [words[1:] for words in lines() if words[0] == "fedssl"]


def shortened(command):
    return [*command, *SHORT.get(command[0], [])]


def python_example():
    """The block of Python, as short as the commands."""
    (example,) = blocks("python")
    example = example.replace('"rounds": 20', '"rounds": 1, "evaluation.linear_epochs": 2')
    return example.replace("epochs=20", "epochs=1, hidden=32")
