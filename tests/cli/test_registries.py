import json
import subprocess
import sys
from importlib import resources

import pytest
import typer

from fedssl.cli.main import app
from fedssl.cli.registries import FILE
from fedssl.encoders.export.formats import FORMATS
from fedssl.evaluation.protocols import PROTOCOLS
from fedssl.experiment.config.schema import ENGINES
from fedssl.experiment.progress.loggers import LOGGERS
from tests.helpers.written_runs import write_run

LISTS = ("presets", "methods", "networks", "rules", "aggregators", "privacy")


def test_lists_are_those_of_the_registries():
    """In a process of its own: other tests here may have added to the registries."""
    text = (resources.files("fedssl.cli") / FILE).read_text(encoding="utf-8")
    code = "import json; from fedssl.cli.registries import describe_registries as d; print(json.dumps(d()))"
    now = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(text) == json.loads(now), "make it anew: python -m fedssl.cli.registries"


def test_lists_of_parts_and_runs_need_no_torch(tmp_path):
    """In a process of its own; the commands are called as the command line does."""
    run = write_run(tmp_path / "runs" / "first")
    commands = [[name] for name in LISTS] + [["ls", str(run.parent)], ["compare", *[str(run)] * 2]]
    code = (
        "import sys; from fedssl.cli.main import app\n"
        f"for command in {commands!r}:\n"
        "    app(command, standalone_mode=False)\n"
        "    assert 'torch' not in sys.modules, command\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert all(word in shown for word in ("cifar10-noniid", "mocov2", "resnet50", "fedema", "krum", "client-dp"))
    assert "25.0 % → 37.5 %" in shown


@pytest.mark.parametrize(
    ("command", "options", "registry"),
    [
        ("run", ["engine"], ENGINES),
        ("run", list(LOGGERS), LOGGERS),
        ("evaluate", ["protocol"], PROTOCOLS),
        ("export", ["to"], FORMATS),
    ],
)
def test_help_names_all_that_is_built_in(command, options, registry):
    """Written by hand, so that `--help` imports nothing."""
    known = {one.name: one for one in typer.main.get_command(app).commands[command].params}
    text = " ".join(f"{name} {known[name].help}" for name in options)
    assert [name for name in registry if name not in text] == []
