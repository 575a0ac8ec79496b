"""The README in a fresh environment: what it says to install, then every command that stands below it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pictures import write_folder
from tests.helpers.readme import OF_A_DEPLOYMENT, ROOT, commands, shortened

pytestmark = pytest.mark.install
WHAT = Path(os.environ.get("WHEEL") or ROOT).resolve()  # `make release-check` names the wheel that it has built
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def call(*words, where):
    done = subprocess.run([*map(str, words)], cwd=where, env=OUTSIDE, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(map(str, words))}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photos/ and an environment: torch as PyTorch's page says (TORCH_FROM), then fedssl."""
    folder = tmp_path_factory.mktemp("fresh")
    write_folder(folder / "photos", classes=("cat", "dog"), each=10)
    call(sys.executable, "-m", "venv", "env", where=folder)
    install(folder, *shlex.split(os.environ.get("TORCH_FROM", "")), "torch")
    install(folder, WHAT)
    return folder


def install(folder, *what):
    pip = (folder / "env/bin/python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    call(*pip, *what, where=folder)


def test_every_command_of_the_readme(place):
    fedssl = place / "env/bin/fedssl"
    for command in commands():
        if command[0] == "certificates":
            install(place, f"{WHAT}[flower]")
        if command[0] not in OF_A_DEPLOYMENT:
            call(fedssl, *shortened(command), where=place)
    assert (place / "runs/photos/report.html").exists()
    assert (place / "certificates/ca.pem").exists()


def test_the_package_is_the_installed_one_and_whole(place):
    probe = "import fedssl; print(fedssl.__file__); [fedssl.load_encoder(name) for name in fedssl.models()]"
    where = call(place / "env/bin/python", "-c", probe, where=place)
    assert str(place / "env") in where


def test_the_readme_that_it_came_with_has_no_dead_link(place):
    probe = "from importlib.metadata import metadata; print(metadata('fedssl').get_payload())"
    shown = call(place / "env/bin/python", "-c", probe, where=place)
    assert "## Install" in shown
    assert re.findall(r"\]\((?!https?:|#)", shown) == []


def test_a_deployment_on_one_machine(place):
    script = ROOT / "examples/deployment/run_on_loopback.sh"
    search = f"{place / 'env/bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([script, place / "loopback"], cwd=place, env=OUTSIDE | {"PATH": search}, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
