"""The files of examples/deployment: units that systemd takes, commands that fedssl takes, one image for both roles."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from fedssl.cli.main import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/deployment"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")


def verified(unit, folder, text):
    """What systemd says of a unit whose program is there."""
    path = folder / unit.name
    path.write_text(text.replace("/opt/fedssl/bin/fedssl", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_unit_and_would_notice_a_mistake(unit, tmp_path):
    text = unit.read_text()
    assert verified(unit, tmp_path, text) == (0, "")
    assert "Unknown key" in verified(unit, tmp_path, text.replace("RestartSec=", "RestartSecs="))[1]


@systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_few_rights(unit):
    """By systemd's own count, from 0 to 10, in tenths; what is left is mostly the network and filters of calls."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def parsed(words):
    """Reads a command of ours as it would be read; nothing is run."""
    program, command, *rest = words
    assert program.endswith("fedssl")
    group = typer.main.get_command(app)
    group.commands[command].make_context(command, rest)
    return command


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_unit_runs_a_command_of_fedssl(unit):
    (line,) = re.findall(r"^ExecStart=(.*)", unit.read_text().replace("\\\n", ""), re.MULTILINE)
    assert parsed(shlex.split(line)) == unit.stem.removeprefix("fedssl-")


def test_the_compose_file_is_the_three_machine_example():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert sorted(services) == ["hospital-a", "hospital-b", "server"]
    for name, service in services.items():
        assert parsed(["fedssl", *service["command"]]) == ("server" if name == "server" else "client")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
        assert [volume.partition(":")[2] for volume in writable] == ["/state"]
    assert {name for name, service in services.items() if "ports" in service} == {"server"}


def test_the_image_has_a_user_of_its_own_a_health_check_and_the_extras():
    text = (FOLDER / "Containerfile").read_text()
    steps = [line.split()[0] for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    assert steps.index("USER") > max(number for number, step in enumerate(steps) if step == "RUN")
    assert re.search(r"^USER (?!0|root)\S+$", text, re.MULTILINE)
    assert {"VOLUME", "HEALTHCHECK", "ENTRYPOINT"} <= set(steps)
    extras = re.search(r"\.\[([a-z,]+)\]", text)[1].split(",")
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
