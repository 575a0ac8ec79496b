"""The README in a fresh environment: what it says to install, then every line below it, in the order of the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pictures import write_folder
from tests.helpers.ports import free_port
from tests.helpers.readme import ROOT, lines, python_example, shortened

pytestmark = pytest.mark.install
WHAT = Path(os.environ.get("WHEEL") or ROOT).resolve()  # `make release-check` names the wheel that it has built
SITES = ("north", "south")  # the README's own is the first
PORT = free_port()
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


def test_every_line_of_the_readme(place, sites):
    for words in map(on_this_machine, lines()):
        if words[0] == "pip":
            install(place, *(word.replace(".", str(WHAT), 1) for word in words[2:]))
            continue
        assert words[0] == "fedssl"
        everywhere = [words] if "north" not in words else [[word.replace("north", n) for word in words] for n in SITES]
        for each in everywhere:
            command = [place / "env/bin/fedssl", *shortened(each[1:])]
            if each[1] == "client":
                sites.append(subprocess.Popen([*map(str, command)], cwd=place, env=OUTSIDE))
            else:
                call(*command, where=place)
    assert (place / "runs/photos/report.html").exists()
    assert len(sites) == len(SITES)
    assert '"status": "finished"' in (place / "runs/sites/summary.json").read_text()


def on_this_machine(words):
    """A line of the README with the names of other machines replaced."""
    names = {"fl.example.org:9092": f"127.0.0.1:{PORT}", "fl.example.org": "127.0.0.1", "/images": "photos"}
    here = [names.get(word, word) for word in words]
    return [*here, "--host", "127.0.0.1", "--port", str(PORT)] if words[:2] == ["fedssl", "server"] else here


@pytest.fixture
def sites():
    """Clients that were started; they wait for the server, and are ended with the test."""
    started = []
    yield started
    for process in started:
        process.terminate()
    for process in started:
        process.wait(60)


def test_the_python_of_the_readme(place):
    call(place / "env/bin/python", "-c", python_example(), where=place)
    assert (place / "encoder/encoder.safetensors").exists()


def test_the_package_is_the_installed_one_and_whole(place):
    probe = "import fedssl; print(fedssl.__file__); [fedssl.load_encoder(name) for name in fedssl.models()]"
    where = call(place / "env/bin/python", "-c", probe, where=place)
    assert str(place / "env") in where


def test_the_readme_that_it_came_with_has_no_dead_link(place):
    probe = "from importlib.metadata import metadata; print(metadata('fedssl').get_payload())"
    shown = call(place / "env/bin/python", "-c", probe, where=place)
    assert "## Install" in shown
    assert re.findall(r"\]\((?!https?:|#)", shown) == []
