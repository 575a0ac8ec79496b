"""Runs the cells of a notebook in one namespace and stores what they print or show: python -m scripts.notebook FILE.

It does what a notebook needs that prints text and ends cells with pictures (`_repr_png_`), without a server or kernel.
"""

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def execute(notebook: dict[str, Any]) -> list[list[Cell]]:
    """The outputs of every code cell, in order; what a cell raises is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run("".join(cell["source"]), names) for cell in code_cells(notebook)]


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run(source: str, names: dict[str, Any]) -> list[Cell]:
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue().splitlines(keepends=True)
    outputs: list[Cell] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _shown(value)})
    return outputs


def _shown(value: Any) -> Cell:
    if not hasattr(value, "_repr_png_"):
        return {"text/plain": [repr(value)]}
    return {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": [repr(type(value).__name__)]}


def main(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), execute(notebook), strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
