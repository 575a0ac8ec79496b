"""`fedssl paper`: lists, dry runs, and one whole experiment from the command to the page."""

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.cli.main import main as fedssl_main
from fedssl.paper.catalogue import load_studies
from tests.helpers.paper_runs import plan_of, write


def call(*arguments):
    result = CliRunner().invoke(app, ["paper", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_list_has_every_experiment():
    code, text = call()
    assert code == 0
    for study in load_studies().values():
        assert study.name in text
        assert study.number in text


def test_scales_are_shown_with_reasons():
    code, text = call("scales")
    assert code == 0
    assert "stands for the paper's 5" in text
    assert "resnet50: left out" in text


def test_a_dry_run_predicts_and_starts_nothing(tmp_path):
    code, text = call(
        "run", "ssl-methods", "--scale", "smoke", "--seeds", 2, "--rows", "FedBYOL", "--out", tmp_path, "--dry-run"
    )
    assert code == 0
    assert "4 of 4 runs to do" in text
    assert "ssl-methods: FedBYOL, CIFAR-100" in text
    assert list(tmp_path.iterdir()) == []


def test_show_without_runs_gives_the_command_that_makes_them(tmp_path):
    chosen = ["--scale", "smoke", "--seeds", 2, "--rows", "FedBYOL", "--out", tmp_path / "my runs"]
    code, text = call("show", "ssl-methods", *chosen)
    assert code == 0
    command = f"fedssl paper run ssl-methods --scale smoke --seeds 2 --out '{tmp_path}/my runs' --rows FedBYOL"
    assert f"What is missing is made with: {command}" in text
    code, text = call(*shlex.split(command)[2:], "--dry-run")
    assert "4 of 4 runs to do" in text


def test_run_and_show(tmp_path):
    """For real, in processes: trained, evaluated, skipped the second time, shown."""
    chosen = ["--scale", "smoke", "--seeds", 1, "--rows", "FedBYOL", "--columns", "CIFAR-10", "--out", tmp_path]
    code, text = call("run", "ssl-methods", *chosen)
    assert code == 0, text
    assert "1/1 finished: byol-replace-synthetic-seed0-" in text
    code, text = call("run", "ssl-methods", *chosen)
    assert "1 runs, 1 of them finished" in text
    assert "begins" not in text
    [folder] = (tmp_path / "smoke").iterdir()
    [entry] = json.loads((folder / "summary.json").read_text())["evaluation"]
    assert (entry["protocol"], entry["settings"]["epochs"]) == ("linear", 5)
    assert "2 rounds in" in (folder / "run.log").read_text()
    code, text = call("show", "ssl-methods", *chosen)
    assert f"{100 * entry['accuracy']:.2f} (n = 1)" in text
    code, text = call("show", "ssl-methods", *chosen, "--markdown")
    assert f"| FedBYOL | 79.44 ± 0.99 | {100 * entry['accuracy']:.2f} (n = 1) |" in text
    code, text = call("show", "ssl-methods", *chosen, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nothing"], "there is no experiment 'nothing'"),
        (["show", "tau", "--scale", "huge"], "--scale: there is no 'huge'"),
        (["run", "tau", "--rows", "MNIST", "--dry-run"], "--rows: there is no 'MNIST'"),
        (["show", "tau", "-o", "nowhere/page.html"], "the folder nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedssl", "paper", *arguments])
    with pytest.raises(SystemExit) as ending:
        fedssl_main()
    assert ending.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_run_that_fails_is_named(tmp_path, monkeypatch, capsys):
    """An interrupted run whose checkpoints are gone."""
    [run] = plan_of("ssl-methods", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10"]).runs.values()
    write(run, 0.5, status="interrupted")
    (run.folder / "checkpoints").write_text("not a folder")
    arguments = ["run", "ssl-methods", "--scale", "smoke", "--seeds", "1", "--rows", "FedBYOL", "--columns", "CIFAR-10"]
    monkeypatch.setattr(sys, "argv", ["fedssl", "paper", *arguments, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ending:
        fedssl_main()
    assert ending.value.code == 2
    assert f"1 of 1 runs failed, the others are finished: {run.name}: exit code" in capsys.readouterr().err
