"""The README's commands, to be run as they stand there; only rounds, epochs and images are fewer."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TINY_RUN = ["--set", "rounds=1", "--set", "evaluation.linear_epochs=2", "--set", "threads=1"]
SHORT = {
    "run": TINY_RUN,
    "report": ["--images", "20"],
    "finetune": ["--epochs", "1", "--hidden", "32"],
}
OF_A_DEPLOYMENT = ("server", "client")  # wait for each other


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands():
    """The words of every line behind `fedssl`, in order."""
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "fedssl"]


def shortened(command):
    return [*command, *SHORT.get(command[0], [])]
