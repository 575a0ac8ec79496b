"""docs/tutorial.md, run as it stands there from top to bottom; only images, rounds and epochs are fewer."""

import json
import re
import shlex
from pathlib import Path

from fedssl.cli.main import app
from fedssl.experiment.config.layers import load_config
from scripts import tutorial
from tests.helpers.html_page import HtmlPage

DOCUMENT = Path(__file__).parents[2] / "docs" / "tutorial.md"
TEXT = DOCUMENT.read_text(encoding="utf-8").replace("\\\n", "")
SHORT = {
    "run": ["--set", "rounds=1", "--set", "evaluation.linear_epochs=2", "--set", "threads=1"],
    "evaluate": ["--epochs", "2"],
    "report": ["--images", "20"],
    "finetune": ["--epochs", "1", "--hidden", "32"],
}


def blocks():
    return re.findall(r"```(sh|python)\n(.*?)```", TEXT, flags=re.DOTALL)


def commands():
    return [shlex.split(line) for language, code in blocks() if language == "sh" for line in code.strip().splitlines()]


def run(language, code, show):
    """Everything that a block prints."""
    if language == "python":
        exec(compile(code.replace("600,", "90,"), str(DOCUMENT), "exec"), {})
    else:
        for line in code.strip().splitlines():
            program, command, *options = shlex.split(line)
            assert program == "fedssl"
            app([command, *options, *SHORT.get(command, [])], standalone_mode=False)
    return show().out


def test_from_nothing_to_an_encoder_in_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shown = [run(language, code, capsys.readouterr) for language, code in blocks()]
    made, inspected, trained, evaluated, exported, onnx, embedded, classified, learnt, again = shown
    assert made == ""
    assert "evaluation: learns from 70 labelled images, tests with 20" in inspected
    assert "kNN accuracy" in trained
    assert "random: linear (paper)" in evaluated
    assert (tmp_path / "runs" / "photos" / "report.html").stat().st_size > 50_000
    assert "onnx: checked" in exported
    assert {path.name for path in (tmp_path / "encoder").iterdir()} == {
        "README.md",
        "config.json",
        "encoder.onnx",
        "model.safetensors",
    }
    assert onnx.strip() == "(1, 192)"
    assert "90 images, 192 features each: features.parquet" in embedded
    assert HtmlPage((tmp_path / "neighbours.html").read_text()).problems == []
    assert "learnt 5 classes from 45 images" in classified
    assert classified.count("photos/kind0/") == 18
    assert json.loads((tmp_path / "classifier" / "result.json").read_text())["n"] == 45
    assert 0 <= float(learnt) <= 1
    assert "at the start" in again
    assert json.loads((tmp_path / "runs" / "next" / "summary.json").read_text())["init"]["sha256"]


def test_what_is_shortened_is_all_that_differs():
    """Every command of the document is one of those that the test calls, with every option as it stands there."""
    assert [command[1] for command in commands()] == [
        "data",
        "run",
        "evaluate",
        "report",
        "export",
        "embed",
        "neighbours",
        "finetune",
        "classify",
        "run",
    ]
    load_config("folder", {"init.encoder": "x", "init.skip": ["conv1"]})


def test_the_page_shows_the_record_of_its_own_commands():
    page, record = DOCUMENT.read_text(encoding="utf-8"), json.loads(tutorial.RECORD.read_text())
    assert tutorial.filled(page, record) == page, "run `make results`"
    assert tutorial.commands(page) == record["commands"], "run `python -m scripts.tutorial run`"
    record["classifier"]["accuracy"] = 0.99
    assert "99.0 % (95 % interval" in tutorial.filled(page, record)
