"""What the README shows must work as it stands there."""

import re

import pytest
import typer

from fedssl.cli.main import app
from tests.helpers.pictures import write_folder
from tests.helpers.readme import OF_A_DEPLOYMENT, README, ROOT, blocks, commands, python_example, shortened


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with the images that the README speaks of."""
    folder = tmp_path_factory.mktemp("readme")
    write_folder(folder / "photos", classes=("cat", "dog"), each=10)
    return folder


def test_every_command_runs_in_the_order_of_the_page(photos, monkeypatch, capsys):
    monkeypatch.chdir(photos)
    for command in commands():
        if command[0] in OF_A_DEPLOYMENT:
            typer.main.get_command(app).commands[command[0]].make_context(command[0], command[1:])  # options exist
        else:
            app(shortened(command), standalone_mode=False)
    shown = capsys.readouterr().out
    assert "kNN accuracy" in shown
    assert "learnt 2 classes from 16 images" in shown
    assert (photos / "runs/photos/report.html").exists()


def test_python_example_runs(photos, monkeypatch):
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line and not line.startswith(("import", " "))]) <= 10
    monkeypatch.chdir(photos)
    names: dict = {}
    exec(compile(python_example(), str(README), "exec"), names)
    assert names["features"].shape == (20, names["encoder"].feature_size)
    assert (photos / "encoder/encoder.safetensors").exists()


def test_the_methods_page_names_presets_that_exist():
    from fedssl.experiment.config.layers import load_config

    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `\+([a-z0-9-]+)`", page, re.MULTILINE)
    assert len(named) > 10
    for algorithm in named:
        load_config(f"smoke+{algorithm}")


def test_every_extra_is_in_the_table():
    from fedssl.core.extras import EXTRAS

    rows = re.findall(r"^\| (`.*?) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= set(EXTRAS)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_make_targets_that_are_shown_exist(target):
    assert f"make {target}" in README.read_text(encoding="utf-8")
    assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
