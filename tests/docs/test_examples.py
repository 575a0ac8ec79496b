"""The examples in docstrings, of public functions and of all others that have one, run in one folder."""

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import torch

import fedssl
from fedssl.encoders.trained import open_encoder
from tests.helpers.pictures import write_folder

# In this order: `load_classifier` opens what `fine_tune` wrote.
PUBLIC = {
    "load": "fedssl.experiment.experiment:load",
    "Experiment": "fedssl.experiment.experiment:Experiment.run",
    "RunReport": "fedssl.experiment.experiment:RunReport",
    "FedsslError": "fedssl.core.errors:FedsslError",
    "Observer": "fedssl.experiment.observers:Observer",
    "make_view": "fedssl.experiment.progress.views:make_view",
    "load_encoder": "fedssl.encoders.trained:load_encoder",
    "models": "fedssl.encoders.models:models",
    "embed": "fedssl.encoders.api:embed",
    "finetune": "fedssl.encoders.api:finetune",
    "fine_tune": "fedssl.encoders.finetune:fine_tune",
    "load_classifier": "fedssl.encoders.classifier:load_classifier",
    "export": "fedssl.encoders.export.run:export_encoder",
    "evaluate": "fedssl.encoders.api:evaluate",
    "batches": "fedssl.encoders.embed:embed",
    "results": "fedssl.encoders.evaluate.run:evaluate",
    "Encoder": "fedssl.encoders.sklearn:Encoder",
    "report": "fedssl.reports.run_page:write_report",
}
# Those of others: a method's, a site's, a page's.
MORE = (
    "fedssl.core.eager:eager",
    "fedssl.core.view_groups:ViewGroup",
    "fedssl.deployment.consent:settings_digest",
    "fedssl.deployment.network:proxy_for",
    "fedssl.deployment.policy:load_policy",
    "fedssl.methods.payloads:tensor_problem",
    "fedssl.networks.vit:VisionTransformer",
    "fedssl.reports.watch:WatchServer",
)


def examples(name):
    """The example of one function, with the names of its own module, of torch and of the package at hand."""
    module, _, path = name.partition(":")
    known = vars(importlib.import_module(module)) | {"fedssl": fedssl, "torch": torch, "open_encoder": open_encoder}
    function = known[path.partition(".")[0]]
    for part in path.split(".")[1:]:
        function = getattr(function, part)
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=False)
    (example,) = finder.find(function, name, globs=known)
    return example


def test_examples_of_public_functions_give_what_they_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=8)
    fedssl.load("smoke", {"rounds": 2, "threads": 1}).run("runs/x")
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for name in (*PUBLIC.values(), *MORE):
        example = examples(name)
        assert 1 <= len(example.examples) <= 6, f"{name} has no short example"
        assert runner.run(example).failed == 0, name


def test_every_public_name_is_among_them():
    assert set(dir(fedssl)) - {"__version__"} <= set(PUBLIC)
    for name in fedssl.__all__:
        module, _, path = PUBLIC[name].partition(":")
        assert getattr(importlib.import_module(module), path.partition(".")[0]) is getattr(fedssl, name)


def test_so_is_every_function_that_a_package_exports():
    names = [one.name for one in pkgutil.walk_packages(fedssl.__path__, "fedssl.") if one.ispkg]
    exporting = [one for one in map(importlib.import_module, names) if hasattr(one, "__all__")]
    assert exporting
    places = [path.partition(":") for path in PUBLIC.values()]
    known = {getattr(importlib.import_module(module), name.partition(".")[0]) for module, _, name in places}
    for one in exporting:
        functions = {getattr(one, name) for name in one.__all__ if inspect.isfunction(getattr(one, name))}
        assert functions <= known, one.__name__


def written(tree, place):
    """What has an example in its docstring, by "module:name"."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{place}{'.' if ':' in place else ':'}{node.name}"
            if ">>>" in (ast.get_docstring(node) or ""):
                yield inner
            yield from written(node, inner)


def test_no_example_is_left_out():
    package = Path(fedssl.__path__[0])
    modules = {
        ".".join(("fedssl", *path.relative_to(package).with_suffix("").parts)): path for path in package.rglob("*.py")
    }
    places = {
        one for name, path in modules.items() for one in written(ast.parse(path.read_text(encoding="utf-8")), name)
    }
    places = {place.replace(".__init__:", ":") for place in places}
    assert places == {*PUBLIC.values(), *MORE}
