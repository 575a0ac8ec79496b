"""Documented names from before the move still import what they are now, with a warning."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.core.old_names import MOVED


@pytest.fixture
def not_yet_imported(monkeypatch):
    for name in [*sys.modules]:
        if any(f"{name}.".startswith(f"{old}.") for old in MOVED):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_new_module_and_warns_whoever_imports_it(not_yet_imported, old):
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}: the old name will go"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__name__ == module.__spec__.name == MOVED[old]


def test_the_changelog_lists_them():
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [old for old, new in MOVED.items() if f"`{old}`" not in changelog or f"`{new}`" not in changelog] == []


def test_what_lies_below_an_old_name_is_not_loaded_twice(not_yet_imported):
    with pytest.warns(DeprecationWarning, match=r"fedssl\.engines\.in_process is now"):
        from fedssl.engines.in_process import InProcessEngine as Old
    from fedssl.federation.engines.in_process import InProcessEngine

    assert Old is InProcessEngine


def test_a_warning_names_the_line_of_the_user(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import fedssl.engines.flower_app as app\nprint(app.APP.name)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "flower_app\n"
    assert "mine.py:1: DeprecationWarning: fedssl.engines.flower_app is now fedssl.deployment" in done.stderr


def test_old_names_cost_no_import():
    probe = "import sys, fedssl; print(sorted({'torch', 'numpy', 'fedssl.encoders'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", probe], text=True) == "[]\n"


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"fedssl\.sklearning"):
        importlib.import_module("fedssl.sklearning")
