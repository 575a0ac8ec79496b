"""What the README shows must work as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_python_example_runs(tmp_path, monkeypatch):
    (example,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)
    assert names["features"].shape == (8, names["encoder"].feature_size)
    assert (tmp_path / "runs" / "readme" / "summary.json").exists()


def test_every_preset_and_command_it_names_exists():
    from fedssl.experiment.config.layers import load_config

    text = "\n".join(blocks("sh"))
    for name in re.findall(r"fedssl run (\S+)", text):
        load_config(name)
    for algorithm in re.findall(
        r"^\| `(fed\S+?|constant-mu|standalone|centralised)`", README.read_text(), re.MULTILINE
    ):
        load_config(f"smoke+{algorithm}")


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_two_commands_are_shown_and_exist(command):
    makefile = (README.parent / "Makefile").read_text()
    assert command in README.read_text()
    assert f"\n{command.split()[1]}:" in makefile
