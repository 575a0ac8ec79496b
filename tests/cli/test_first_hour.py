"""What a person tries in the first hour: the command itself, names that are nearly right, the package at a prompt."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedssl
from fedssl.cli import main as cli
from fedssl.cli.completion import complete_preset, complete_run
from fedssl.core.errors import FedsslError
from fedssl.experiment.config.layers import load_config
from fedssl.networks.backbones import BACKBONES, feature_size
from tests.helpers.small import TINY

SOURCE = Path(fedssl.__file__).parent
NETWORK = """
import wave
from helper_of_mine import width
from torch import nn

def build(channels):
    return nn.Sequential(nn.Conv2d(channels, width, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def command(*arguments, **options):
    """As the installed command is started, which unlike `python -m` does not look for modules in the folder."""
    start = [sys.executable, "-P", "-c", "from fedssl.cli.main import main; main()", *arguments]
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(start, capture_output=True, text=True, env=environment, check=False, **options)


def test_the_version():
    done = CliRunner().invoke(cli.app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"fedssl {fedssl.__version__}\n")


def test_networks_are_listed_with_every_setting_range_and_default():
    shown = CliRunner().invoke(cli.app, ["networks"]).output
    assert all(f"{name}  " in shown for name in BACKBONES)
    assert "network.width = 64   (a whole number 1 or more)" in shown
    assert "network.stem_stride = 1   (one of 1, 2)" in shown
    assert "network.head_hidden = 4096   (a whole number 1 or more)" in shown


def test_the_shell_completes_presets_algorithms_and_run_folders(tmp_path, monkeypatch):
    assert "cifar10-cpu" in complete_preset("cifar10-")
    assert complete_preset("smo") == ["smoke"]
    assert "smoke+fedbyol" in complete_preset("smoke+fed")
    for name in ("runs/first", "runs/second"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert complete_run("ru") == ["runs/first", "runs/second"]
    assert complete_run("runs/s") == ["runs/second"]
    assert complete_run(f"{tmp_path}/runs/f") == [f"{tmp_path}/runs/first"]
    asked = {"COMP_WORDS": "fedssl run smo", "COMP_CWORD": "2", "_FEDSSL_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(cli.app, [], env=asked, prog_name="fedssl")
    assert done.output.strip() == "smoke"


def test_a_network_module_in_the_working_folder_is_found_also_by_workers(tmp_path):
    (tmp_path / "net_of_mine.py").write_text(NETWORK)
    (tmp_path / "helper_of_mine.py").write_text("width = 4")
    (tmp_path / "wave.py").write_text("raise SystemExit('a module of the standard library was hidden')")
    small = [f"{key}={value}" for key, value in TINY.items() if key != "network.width"]
    asked = ["network.name=net_of_mine:build", "engine=processes", "workers=2", "rounds=1", *small]
    settings = [word for one in asked for word in ("--set", one)]
    done = command("run", "smoke", *settings, "--out", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def test_dir_shows_what_there_is_to_use():
    assert {*fedssl.__all__, "__version__"} == set(dir(fedssl))
    assert all(getattr(fedssl, name) for name in fedssl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = fedssl.laod


def test_a_type_checker_finds_a_misspelt_name(tmp_path):
    (tmp_path / "mine.py").write_text('import fedssl\nfedssl.load("smoke")\nfedssl.laod("smoke")\n')
    check = [
        sys.executable,
        "-m",
        "mypy",
        "--follow-imports=skip",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    done = subprocess.run(
        [*check, str(SOURCE / "__init__.py"), str(tmp_path / "mine.py")], capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert 'mine.py:3: error: Module has no attribute "laod"' in errors[0]


def test_an_experiment_says_what_it_is():
    assert repr(fedssl.load("smoke", {"rounds": 7})) == (
        "Experiment(byol with fedema on synthetic, clients: 4, rounds: 7)"
    )
    assert "clients: by the data" in repr(fedssl.load("folder"))


class OneSize(nn.Module):
    """As a vision transformer: positions for one size, and an assertion about it."""

    def __init__(self, size):
        super().__init__()
        self.size, self.layer = size, nn.Conv2d(3, 8, 16, 16)

    def forward(self, images):
        torch._assert(images.shape[2] == self.size, f"Expected {self.size} but got {images.shape[2]}")
        return self.layer(images).mean(dim=(2, 3))


def test_a_network_for_another_image_size_names_both_and_the_setting():
    network = OneSize(224)
    with pytest.raises(FedsslError) as caught:
        feature_size(network, 3, (64, 64))
    assert str(caught.value) == (
        "network: the backbone fails on images of 3x64x64: Expected 224 but got 64; it takes 224x224: give it such "
        "images (data.image_size = 224), or build it for this size with a setting of its own in [network]"
    )
    assert network.training
    with pytest.raises(FedsslError, match=r"fails on images of 1x64x64: (?!.*it takes)"):
        feature_size(nn.Conv2d(3, 1, 1), 1, (64, 64))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("optimizer.lr", "local_training.lr"),
        ("optimizer.learning_rate", "local_training.lr"),
        ("training.epochs", "local_training.epochs"),
        ("model.name", "network.name"),
        ("model.width", "network.width"),
        ("dataset.name", "data.name"),
        ("lr", "local_training.lr"),
        ("epochs", "local_training.epochs"),
        ("batch_size", "local_training.batch_size"),
        ("num_rounds", "rounds"),
        ("data.batch_size", "local_training.batch_size"),
        ("tau", "update_rule.tau"),
        ("local_training.learning_rate", "local_training.lr"),
    ],
)
def test_a_setting_under_another_name_is_found(wrong, right):
    with pytest.raises(FedsslError) as caught:
        load_config("smoke", {wrong: 1})
    assert str(caught.value).startswith(f"{wrong}: unknown key (did you mean {right!r}?); known here: ")


def test_a_setting_of_another_entry_is_not_suggested_for_itself():
    with pytest.raises(FedsslError, match=r"^update_rule\.tau: unknown key (?!\(did you mean 'update_rule\.tau')"):
        load_config("smoke", {"update_rule.name": "replace", "update_rule.tau": 0.5})
