"""Every extra absent: one line with the command that installs it, before anything is decoded, trained or written."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedssl.cli import main as cli
from fedssl.core.errors import FedsslError
from fedssl.core.extras import EXTRAS, need
from tests.helpers.pictures import write_folder

PRIVATE = (
    *("privacy.name=client-dp", "privacy.clip_norm=1.0", "privacy.noise_multiplier=1.0"),
    *("aggregation.batchnorm=local-statistics", "update_rule.lambda_at=client"),
)
COMMANDS = [
    ("tensorboard", "run smoke --tensorboard --out OUT"),
    ("wandb", "run smoke --wandb --out OUT"),
    ("mlflow", "run smoke --mlflow --out OUT"),
    ("hf", "run folder --set data.path=hf:a/b --out OUT"),
    ("hf", "run folder --set data.path=photos --set data.eval_test=hf:a/b --out OUT"),
    ("parquet", "run folder --set data.path=table.parquet --out OUT"),
    ("parquet", "run folder --set data.path=photos --set data.eval_test=table.parquet --out OUT"),
    ("parquet", "embed no-run photos -o OUT.parquet"),
    ("privacy", f"run smoke --set {' --set '.join(PRIVATE)} --out OUT"),
    ("onnx", "finetune no-run --data photos --to safetensors,onnx -o OUT"),
    ("flower", "run smoke --engine flower --out OUT"),
    ("flower", "server smoke --clients a,b --out OUT"),
    ("flower", "client --name a --server 127.0.0.1:9092 --state OUT"),
    ("flower", "certificates make --out OUT"),
    ("flower", "certificates node a --out OUT"),
]


def absent(monkeypatch, *modules):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)  # how Python marks a module that cannot be imported


def test_the_table_has_every_extra_that_can_be_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs"}  # of developers


@pytest.mark.parametrize(("extra", "module"), [(extra, module) for extra in EXTRAS for module in EXTRAS[extra]])
def test_every_module_of_every_extra_is_named(monkeypatch, extra, module):
    index = EXTRAS[extra].index(module)
    for there in EXTRAS[extra][:index]:
        importlib.import_module(there)  # some import the missing one themselves, and would name a part of it
    absent(monkeypatch, *EXTRAS[extra][index:])
    with pytest.raises(FedsslError) as caught:
        need(extra, "--this")
    assert str(caught.value) == f'--this: {module} is not installed: pip install "fedssl[{extra}]"'


def test_a_folder_of_that_name_is_no_package(monkeypatch, tmp_path):
    """`datasets/` and `wandb/` lie in many a working folder, and Python would import them as empty packages."""
    (tmp_path / "datasets").mkdir()
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(FedsslError, match=r'data\.path: datasets is not installed: pip install "fedssl\[hf\]"'):
        need("hf", "data.path")
    sys.modules.pop("datasets", None)


def test_a_library_that_breaks_on_import_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist\\nmore')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FedsslError) as caught:
        need("timm", "network.name = timm:resnet18")
    assert str(caught.value) == (
        "network.name = timm:resnet18: timm is installed but cannot be imported: operator torchvision::nms does not "
        'exist: install it anew for the packages here: pip install --force-reinstall "fedssl[timm]"'
    )


@pytest.mark.parametrize(("extra", "command"), COMMANDS)
def test_a_command_says_so_before_any_work_is_done(monkeypatch, tmp_path, extra, command):
    write_folder(tmp_path / "photos")
    (tmp_path / "table.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    absent(monkeypatch, *EXTRAS[extra])
    done = CliRunner().invoke(cli.app, command.split())
    assert isinstance(done.exception, FedsslError), done.output
    assert str(done.exception).endswith(f'is not installed: pip install "fedssl[{extra}]"')
    assert "\n" not in str(done.exception)
    assert done.output == ""
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "table.parquet"}, "nothing decoded, nothing written"


def test_simulations_need_ray_too(monkeypatch, tmp_path):
    absent(monkeypatch, "ray")
    done = CliRunner().invoke(cli.app, ["run", "smoke", "--engine", "flower", "--out", str(tmp_path / "run")])
    assert str(done.exception) == 'engine: ray is not installed: pip install "fedssl[flower]"'
