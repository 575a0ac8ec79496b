"""No branch on a name outside its registry: who needs to know something of an entry asks the entry.

And the words of names and sentences are those of the field.
"""

import ast
import importlib
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import fedssl
from fedssl.core.registry import Registry
from fedssl.federation.model_communication import BatchNormSharing
from fedssl.federation.privacy.mechanism import ClientDP

PACKAGE = Path(fedssl.__path__[0])
ELSEWHERE = "which of our networks another library has is known to the export alone"
# Comparisons with the same word for something else, by file and word.
ALLOWED = {
    ("deployment/server_run.py", "sites"): "where images lie (`Where`), whatever the dataset is called",
    ("deployment/site_run.py", "sites"): "where images lie (`Where`), whatever the dataset is called",
    ("encoders/classifier.py", "classes"): "a key in the file of a classifier",
    ("encoders/export/libraries.py", "timm"): "the library that made a network (`Origin`)",
    ("encoders/export/libraries.py", "torchvision"): "the library that made a network (`Origin`)",
    ("encoders/export/model_card.py", "cifar10"): "what model hubs call public datasets is known to the card alone",
    ("encoders/export/model_card.py", "cifar100"): "what model hubs call public datasets is known to the card alone",
    ("encoders/export/resnets.py", "resnet10"): ELSEWHERE,
    ("encoders/export/resnets.py", "resnet18"): ELSEWHERE,
    ("methods/moco.py", "linear"): "MoCo's own setting `head`",
}


def parsed():
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def registries(trees):
    """Every registry, by the file or package in which its names are at home."""
    found = []
    for path, tree in trees.items():
        for node in tree.body:
            value, target = getattr(node, "value", None), getattr(node, "target", None)
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Registry":
                module = ".".join(("fedssl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
                    ".__init__"
                )
                registry = getattr(importlib.import_module(module), target.id)
                found.append((registry, path.parent if path.stem == "__init__" else path))
    return found


def homes(trees):
    """By name, the files and packages that may compare it: registries' names, and settings with a property each."""
    found = {}
    for registry, home in registries(trees):
        assert isinstance(registry, Registry)
        for name in (*registry.data, *registry.families):
            found.setdefault(name, set()).add(home)
        for name, family in registry.families.items():
            made_in = Path(*family.make.partition(":")[0].split(".")[1:]).with_suffix(".py")
            found[name].add(PACKAGE / made_in)
    for name in get_args(get_type_hints(ClientDP)["placement"]):
        found.setdefault(name, set()).add(PACKAGE / "federation/privacy")
    for name in get_args(BatchNormSharing):
        found.setdefault(name, set()).update(
            (PACKAGE / "federation/model_communication.py", PACKAGE / "experiment/config/schema.py")
        )
    return found


def words(node, constants):
    """The texts that an operand or a pattern consists of; a name stands for the constant of its module."""
    node = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.MatchValue):
        return words(node.value, constants)
    parts = getattr(node, "elts", None) or getattr(node, "patterns", None) or getattr(node, "keys", None) or ()
    return {word for part in parts if isinstance(part, ast.AST) for word in words(part, {})}


def compared(tree):
    """(line, word) of every text that something is compared with, matched with, or looked up by in a literal table."""
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        operands = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            operands = [node.pattern]
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Dict):
            operands = [node.value]
        for operand in operands:
            yield from ((operand.lineno, word) for word in words(operand, constants))


def test_names_are_compared_at_home_only():
    trees = parsed()
    known, found = homes(trees), {}
    for path, tree in trees.items():
        for line, word in compared(tree):
            if word in known and not any(path.is_relative_to(home) for home in known[word]):
                found[path.relative_to(PACKAGE).as_posix(), word] = line
    outside = [f"{file}, line {line}: {word!r}" for (file, word), line in found.items() if (file, word) not in ALLOWED]
    assert not outside, "ask the class, not its name"
    assert not ALLOWED.keys() - found.keys(), "allowed, but not there any more"


def test_every_registry_is_looked_at():
    trees = parsed()
    written = sum(ast.unparse(node.func) == "Registry" for tree in trees.values() for node in calls(tree))
    groups = {registry.group.removeprefix("fedssl.") for registry, _ in registries(trees)}
    assert len(groups) == written
    assert groups >= {"methods", "update_rules", "aggregators", "networks", "engines", "protocols", "privacy"}


def test_no_other_table_has_the_name_of_a_registry():
    trees, at = parsed(), {}
    for path, tree in trees.items():
        for node in tree.body:
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign):
                    at.setdefault(target.id, []).append(path)
    registered = {
        ast.unparse(node.target)
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "Registry"
    }
    assert len(registered) == 13
    assert {name: at[name] for name in registered if len(at[name]) > 1} == {}


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize(
    "code",
    [
        "if metric == 'knn': pass",
        "if 'knn' != metric: pass",
        "if metric in ('linear', 'knn'): pass",
        "if metric not in {'knn': 1}: pass",
        "if 'knn' in metrics: pass",
        "FAST = ('knn',)\nif metric in FAST: pass",
        "match metric:\n    case 'linear' | 'knn': pass",
        "label = {'knn': 'kNN'}[metric]",
        "label = {'knn': 'kNN'}.get(metric)",
    ],
)
def test_ways_to_compare_are_found(code):
    assert "knn" in {word for _, word in compared(ast.parse(code))}


@pytest.mark.parametrize(
    "code", ["metric = 'knn'", "record['knn'] == 1", "TITLES = {'knn': 'kNN'}", "look('knn') == 1"]
)
def test_what_is_no_comparison_is_left_alone(code):
    assert not list(compared(ast.parse(code)))


ROOT = Path(__file__).parents[1]
NO_NAMES = {"told", "asked", "found", "apart", "whose", "course", "surroundings", "spending", "rightly", "deaf"}
NO_FILES = {"utils", "helpers", "util", "helper", "misc", "common"}
NO_SENTENCES = re.compile(
    r"\b(carr(y|ies|ied) out|go(es)? on with|gone on|rightly|bad clients|a line a|an image a)\b"
    r"|\b(seconds|minutes|hours|core-minutes|[kMG]B|steps|time) an? (round|run|site|image|step|seed|class|epoch)\b"
)


def named(tree):
    """(line, name) of everything that a module gives a name to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def parts(name):
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_are_words_of_the_field():
    """`Found` is a class, what a layout found; a test may call a value so."""
    paths = [path for place in ("src", "scripts", "benchmarks", "examples") for path in (ROOT / place).rglob("*.py")]
    assert len(paths) > 300
    assert not [path for path in paths if path.stem in NO_FILES]
    wrong = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path in paths
        for line, name in named(ast.parse(path.read_text(encoding="utf-8")))
        if parts(name) & NO_NAMES and name != "Found"
    ]
    assert not wrong


@pytest.mark.parametrize(
    "code", ["def was_told(): ...", "found = 1", "one.asked = 1", "lambda whose: 1", "class Course: ..."]
)
def test_other_names_are_seen(code):
    assert any(parts(name) & NO_NAMES for _, name in named(ast.parse(code)))


def test_sentences_are_those_of_the_field():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml", ".html", ".md")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(files) > 300
    assert len(pages) > 20
    lines = {
        f"{path.relative_to(ROOT)}, line {number}": match[0]
        for path in (*files, *pages)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := NO_SENTENCES.search(line))
    }
    assert lines == {}
