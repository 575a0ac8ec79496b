"""The house: twelve packages at the top, eight layers between them, and tests that mirror both."""

import ast
import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path

import fedssl
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS

ROOT = Path(__file__).parents[1]
PACKAGE = Path(fedssl.__path__[0])
OTHERS = {
    "benchmarks",
    "helpers",
    "fixtures",
    "docs",
    "faults",
    "examples",
    "user_code",
}  # folders of tests that mirror no package


def folders(place):
    return {path.name for path in place.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_at_most_twelve_packages_at_the_top_and_nothing_beside_them():
    assert len(folders(PACKAGE)) <= 12
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == {"__init__.py", "__main__.py", "py.typed"}
    assert all((PACKAGE / name / "__init__.py").is_file() for name in folders(PACKAGE))


def test_at_most_eight_layers_hold_every_package():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert len(layers) <= 8
    assert sorted(" | ".join(layers).split(" | ")) == sorted(f"fedssl.{name}" for name in folders(PACKAGE))


def test_folders_of_tests_mirror_packages():
    assert folders(ROOT / "tests") - OTHERS == folders(PACKAGE)
    for room in folders(PACKAGE):
        inner = {path.name for path in (ROOT / "tests" / room).iterdir() if [*path.glob("test_*.py")]}
        assert inner <= folders(PACKAGE / room), f"tests/{room} has a folder that src/fedssl/{room} has not"


def code_lines(source):
    """Lines that do something: not blank, no comment, no docstring, no text for the documentation."""
    prose = set()
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        departs = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "departs"
        if text or departs:
            prose |= {*range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return sum(1 for number, line in lines if line.strip() and line.strip()[0] != "#" and number not in prose)


def test_a_method_is_one_short_file_and_fedema_a_shorter_class():
    for name in METHODS:
        assert code_lines(inspect.getsource(inspect.getmodule(METHODS[name]))) <= 80, name
    assert code_lines(inspect.getsource(UPDATE_RULES["fedema"])) <= 40


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def modules():
    """Every module of the package but `__main__`, which runs the command when it is imported."""
    for one in pkgutil.walk_packages([str(PACKAGE)], "fedssl."):
        if "__main__" not in one.name:
            yield importlib.import_module(one.name)


def positional(kind):
    """The arguments of a class that may be given without their names."""
    return [name for name, one in inspect.signature(kind).parameters.items() if one.kind in POSITIONAL]


def test_a_constructor_takes_at_most_four_arguments_without_their_names():
    made_here = {
        one
        for module in modules()
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__.startswith("fedssl.") and "__init__" in vars(one)
    }
    assert len(made_here) > 100
    assert {f"{one.__module__}:{one.__name__}": positional(one) for one in made_here if len(positional(one)) > 4} == {}


def test_a_function_is_at_most_sixty_lines_long():
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                long[f"{path.name}:{node.name}"] = node.end_lineno - node.lineno + 1
    assert long == {}


def test_a_module_is_at_most_four_hundred_lines_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path.relative_to(PACKAGE)): length for path, length in lengths.items() if length > 400} == {}
