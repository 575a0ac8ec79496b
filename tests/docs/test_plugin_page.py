"""docs/plugin.md as it stands there: the files are written, the commands are run; only rounds and images are fewer."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.helpers.small import TINY

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "plugin.md").read_text(encoding="utf-8")
FEWER = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def call(folder, words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    program = [sys.executable, "-m", "fedssl", *words]
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_method_in_a_file_of_its_own(tmp_path):
    method, rule = blocks("python")
    (tmp_path / "spread.py").write_text(method)
    (tmp_path / "keep.py").write_text(rule)
    train, evaluate = (shlex.split(line)[1:] for line in blocks("sh")[0].splitlines())
    call(tmp_path, [*train, *FEWER, "--set", "update_rule.name=keep:KeepPredictor"])
    assert "spread_weight = 2" in (tmp_path / "runs" / "spread" / "config.toml").read_text()
    assert "knn" in call(tmp_path, [*evaluate, "--allow-code", "keep"])


def test_every_group_of_entry_points_exists():
    named = re.search(r"Groups: (.*?)\. `examples", TEXT, flags=re.DOTALL)
    groups = set(re.findall(r"`(\w+)`", named[1]))
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "fedssl").rglob("*.py"))
    assert groups == set(re.findall(r'= Registry\(\s*"(\w+)"', source))
