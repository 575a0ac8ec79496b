"""The scripts of examples/ at smoke size, and its notebook from the first cell to the last."""

import importlib.util
import json
from pathlib import Path

import pytest

from scripts.notebook import code_cells, execute
from tests.helpers.pictures import write_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {
    "first_run": ("out",),
    "own_photos": ("photos", "out", "1"),
    "watch_a_run": ("out", "0.05"),
    "find_alike": ("photos",),
    "few_labels": ("photos", "out", "cifar10-fedema-small", "1"),
}
SAYS = {
    "first_run": "random, BatchNorm running: ",
    "own_photos": "for other programs: out/encoder (README.md, config.json, encoder.safetensors)",
    "watch_a_run": "\nenough\n",
    "find_alike": "photos/cat/000.png is most like photos/",
    "few_labels": "learnt cat, dog from 10 images",
}


def test_every_script_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_script_says_what_it_should(tmp_path, monkeypatch, capsys, name):
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=10)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(*ARGUMENTS[name])
    assert SAYS[name] in capsys.readouterr().out


def test_the_notebook_runs_and_shows_what_is_stored_in_it():
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))
    stored = [cell["outputs"] for cell in code_cells(notebook)]
    assert list(map(kinds, execute(notebook))) == list(map(kinds, stored))
    assert sum(map(len, stored)) >= 6


def kinds(outputs):
    """What is the same on every machine: numbers and pictures are not."""
    return [(one["output_type"], len(one.get("text", ())), *one.get("data", ())) for one in outputs]
