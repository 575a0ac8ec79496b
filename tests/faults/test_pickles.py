"""No pickle is read but the official CIFAR archives, and those by an unpickler of few types. FAULTS 37."""

import ast
import pickle
import shutil
from pathlib import Path

import pytest
import torch

import fedssl
from fedssl.core.errors import FedsslError
from tests.faults.test_damage import QUICK, Stops
from tests.helpers.faults import experiment

SOURCES = sorted(Path(fedssl.__file__).parent.rglob("*.py"))
ALLOWED = {"cifar.py"}


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pickles") / "run"
    with pytest.raises(KeyboardInterrupt):
        experiment("BYOL + FedEMA", **QUICK).run(folder, Stops(2))  # a checkpoint of round 0 would need no client
    return folder


@pytest.mark.parametrize("kind", ["pickle", "torch zip"])
@pytest.mark.parametrize("where", ["encoder.safetensors", "checkpoints", "clients"])
def test_a_pickle_given_as_weights_is_refused_and_not_executed(part, tmp_path, where, kind):
    run, touched = tmp_path / "run", tmp_path / "touched"
    shutil.copytree(part, run)
    paths = [run / where] if where.endswith("safetensors") else sorted((run / where).rglob("*.safetensors"))
    assert paths
    for path in paths:
        if kind == "pickle":
            path.write_bytes(pickle.dumps(Touches(touched)))
        else:
            torch.save({"weights": Touches(touched)}, path)

    def read():
        if where == "encoder.safetensors":
            fedssl.load_encoder(run)
        else:
            experiment("BYOL + FedEMA", **QUICK).run(run)

    with pytest.raises(FedsslError, match=r"damaged|not an encoder"):
        read()
    assert not touched.exists()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_reads_pickles(path):
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if path.name not in ALLOWED:
        assert not {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"} & imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert called != "torch.load" or options.get("weights_only") == "True"
            assert options.get("allow_pickle", "False") == "False"
