"""A package of somebody else adds a method, an update rule, an aggregator and a network, on every engine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedssl
from tests.helpers.small import TINY

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
NAMES = {
    "method.name": "spread",
    "update_rule.name": "keep-predictor",
    "aggregation.name": "equal-average",
    "network.name": "patches",
}
SHORT = {key: value for key, value in TINY.items() if key != "network.width"} | {"partition.num_clients": 2}
ENGINES = ["in-process", "processes", pytest.param("flower", marks=pytest.mark.flower)]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The command `fedssl` where the package is installed: its exit code, and all that it said."""
    packages = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("source") / "plugin")  # the build writes beside it
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", packages, source], check=True, capture_output=True)
    path = os.pathsep.join([str(packages), str(Path(fedssl.__file__).parents[1])])

    def call(*words):
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "fedssl", *map(str, words)], env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    return call


def run(command, folder, **more):
    settings = [text for key, value in (SHORT | NAMES | more).items() for text in ("--set", f"{key}={value}")]
    code, said = command("run", "smoke", *settings, "--out", folder)
    assert code == 0, said
    return json.loads((folder / "summary.json").read_text())["weights_sha256"]


@pytest.fixture(scope="module")
def plain(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain"
    return folder, run(command, folder, engine="in-process")


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_runs_it_with_the_same_bits(command, plain, tmp_path, engine):
    assert run(command, tmp_path / "run", engine=engine, workers=1) == plain[1]


def test_the_run_says_what_it_was_made_with(plain):
    config = (plain[0] / "config.toml").read_text()
    assert all(f'name = "{name}"' in config for name in NAMES.values())
    assert '[augmentation]\nname = "weak-jitter"' in config, "the recipe that the method's class names"


def test_a_run_folder_allows_none_of_it(command, plain):
    """Each name by itself, and all of them are readable where a person allows the package."""
    evaluate = ("evaluate", plain[0], "--protocol", "knn", "--no-cache")
    code, said = command(*evaluate)
    assert code == 2
    assert "method.name: it names code of package 'fedssl_example' (spread)" in said
    assert "say --allow-code fedssl_example" in said
    code, said = command(*evaluate, "--allow-code", "fedssl_example")
    assert code == 0, said


@pytest.mark.parametrize(
    ("listing", "name"),
    [("methods", "spread"), ("rules", "keep-predictor"), ("aggregators", "equal-average"), ("networks", "patches")],
)
def test_what_is_installed_is_listed(command, listing, name):
    code, said = command(listing)
    assert code == 0
    assert f"{name}  of an installed package (fedssl_example:" in said
