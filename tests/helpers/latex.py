"""The paper's LaTeX read: its tables and figures, with their labels, numbers and the cells of their tabulars."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

CELL = re.compile(r"^\d+(\.\d+)?( ± \d+(\.\d+)?)?$|^-$")


def find_source():
    """The paper's source: named by FEDSSL_PAPER, or in ../shared/paper beside the repository; None when absent."""
    named = os.environ.get("FEDSSL_PAPER")
    if named:
        return Path(named)
    found = sorted((Path(__file__).parents[2].parent / "shared" / "paper").glob("*.txt"))
    return found[0] if found else None


def read_source(path):
    """Without comments, which hold discarded tables."""
    return re.sub(r"(?<!\\)%.*", "", path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Float:
    """A table or figure environment."""

    kind: str
    labels: list
    tabulars: list  # of rows: (texts before the numbers, numbers as printed)


def floats(source):
    found = []
    for match in re.finditer(r"\\begin\{(table|figure)\*?\}(.*?)\\end\{\1\*?\}", source, re.DOTALL):
        body = match[2]
        labels = [label for label in re.findall(r"\\label\{([^}]*)\}", body) if label]
        inner = re.findall(
            r"\\begin\{tabular\}(?:\[c\])?\{[^}]*\}((?:(?!\\begin\{tabular\}).)*?)\\end\{tabular\}", body, re.DOTALL
        )
        found.append(Float(match[1], labels, [rows for text in inner if (rows := table_rows(text))]))
    return found


def table_rows(text):
    """The rows of a tabular that have numbers: labels first, then every number."""
    rows = []
    for line in re.split(r"\\\\", text):
        cells = [clean(cell) for cell in line.split("&")]
        numbers = [cell for cell in cells if CELL.match(cell)]
        words = [cell for cell in cells if cell and not CELL.match(cell)]
        if words and numbers and not any("multi" in cell or "E =" in cell for cell in words):
            rows.append((words, numbers))
    return rows


def clean(cell):
    """`\\textbf{85.59 $\\pm$ 0.25}` -> `85.59 ± 0.25`."""
    cell = re.sub(r"\\(cline|cellcolor|citep?|Xhline)\{[^}]*\}|\\hline|\\arrayrulewidth\}?", "", cell)
    cell = re.sub(r"\{?\\multirow\{\d\}\{\*\}\{[^}]*\}\}?", "", cell)
    cell = cell.replace(r"\textbf{", "").replace("}", "").replace(r"\%", " %").replace(r"\#", "#")
    cell = cell.replace(r"$\pm$", "±").replace(r"$\lambda", "λ").replace(r"$\tau", "τ").replace("$", "")
    cell = re.sub(r"(?<=[λτ]) ?= ?", " = ", cell)
    return " ".join(cell.split())


def captions(source):
    """{label: "Table 3"}: captions are counted in the order of the source, those of parts of a figure are not."""
    source = re.sub(r"\\begin\{subfigure\}.*?\\end\{subfigure\}", "", source, flags=re.DOTALL)
    source = re.sub(r"\\subfloat\{\\label\{[^}]*\}", "", source)
    counts, found = {"table": 0, "figure": 0}, {}
    pattern = r"\\begin\{(table|figure)\*?\}.*?\\end\{\1\*?\}|\\captionof\{figure\}.*?\\label\{[^}]*\}"
    for match in re.finditer(pattern, source, re.DOTALL):
        kind = match[1] or "figure"
        for label in re.findall(r"\\label\{([^}]+)\}", match[0]):
            counts[kind] += 1
            found[label] = f"{kind.capitalize()} {counts[kind]}"
    return found
