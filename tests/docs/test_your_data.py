"""The commands of docs/your-data.md, run as they stand there, on folders made for them."""

import re
import shlex
from pathlib import Path

import pytest

from fedssl.cli.main import app
from tests.helpers.pictures import write_folder

DOCUMENT = Path(__file__).parents[2] / "docs" / "your-data.md"
TEXT = DOCUMENT.read_text(encoding="utf-8").replace("\\\n", "")
# Only the length of a run is changed: 20 rounds would take minutes.
SHORT = ["--set", "rounds=1", "--set", "data.image_size=16", "--set", "evaluation.linear_epochs=2"]


def blocks():
    return re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The two folders that the document speaks of, and a cache beside them."""
    write_folder(tmp_path / "sites", clients=("north", "south"), each=6)
    (tmp_path / "sites" / "north" / "broken.jpg").write_bytes(b"no image")
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def commands(block):
    return [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]


@pytest.fixture
def run(folder, capsys):
    """A command as it is typed; returns what it prints."""

    def call(command):
        options = SHORT if command[1] == "run" else ["--epochs", "2"] if command[1] == "evaluate" else []
        options = SHORT[2:4] if command[1:3] == ["data", "inspect"] else options
        app([*command[1:], *options], standalone_mode=False)
        return capsys.readouterr().out

    return call


def test_five_commands_without_labels(folder, run):
    inspected, trained, reported, listed, cleaned = map(run, commands(blocks()[0]))
    assert "client 0 (north): 6 images" in inspected
    assert "north/broken.jpg: not an image" in inspected
    assert (folder / "sites-inspected" / "views.png").exists()
    assert "No accuracy can be given without labelled test images" in trained
    assert (folder / "runs" / "sites" / "refused.jsonl").read_text().count("\n") == 1
    assert "left out: Accuracy over rounds" in reported
    assert (folder / "runs" / "sites" / "report.html").exists()
    assert "2 clients (natural)" in listed
    assert re.search(r"removed \d sets of decoded images", cleaned)
    assert len(list((folder / "sites").rglob("*"))) == 15


def test_five_commands_with_labels(folder, run):
    inspected, equal, uneven, evaluated, _ = map(run, commands(blocks()[1]))
    assert "evaluation: learns from 32 labelled images, tests with 8" in inspected
    assert "2 classes: cat, dog" in inspected
    for shown in (equal, uneven):
        assert "kNN accuracy" in shown
    assert "Accuracy on 8 test images of folder" in evaluated
    assert "random" in evaluated
    assert (folder / "report.html").stat().st_size > 50_000


def test_each_kind_of_user_needs_five_commands():
    assert [len(commands(block)) for block in blocks()] == [5, 5]


def test_every_setting_that_is_named_exists():
    from fedssl.experiment.config.layers import load_config

    text = DOCUMENT.read_text(encoding="utf-8")
    known = load_config("folder").as_raw()
    named = set(re.findall(r"`(data|partition)\.([a-z_]+)", text))
    assert len(named) > 15
    data = set(known["data"]) | {"eval_train", "eval_test"}
    for table, key in named:
        assert key in data if table == "data" else key in ("name", "num_clients", "alpha"), f"{table}.{key}"
