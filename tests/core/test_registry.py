"""One registry for all parts: fedssl's own, entry points, import paths, and who may name them."""

import sys
from importlib.metadata import EntryPoint

import pytest

from fedssl.core import registry as module
from fedssl.core.errors import FedsslError
from fedssl.core.registry import Registry, Typed
from fedssl.experiment.config.layers import load_config, typed_config
from fedssl.experiment.config.resolve import NAMED
from fedssl.experiment.config.schema import ENGINES


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """A registry with an entry that is imported when needed, and a package that adds `square` and hides nothing."""
    (tmp_path / "shapely.py").write_text("class Square: ...\nvalue = 3\nfrom os import system\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, "shapely:Square", "fedssl.shapes") for name in ("square", "own")]
    monkeypatch.setattr(module, "entry_points", lambda group: points if group == "fedssl.shapes" else [])
    yield Registry("shapes", "shape.name", {"own": "decimal:Decimal"})
    sys.modules.pop("shapely", None)


def test_our_own_are_a_mapping_that_is_imported_when_asked_for(shapes):
    assert list(shapes) == ["own"]
    assert shapes.data["own"] == "decimal:Decimal"
    assert shapes["own"].__name__ == shapes.find("own").__name__ == "Decimal"
    assert "square" not in shapes


@pytest.mark.parametrize("name", ["square", "shapely:Square"])
def test_what_others_made_is_found_where_its_package_is_allowed(shapes, name):
    with pytest.raises(FedsslError, match=r"^shape\.name: it names code of package 'shapely' .* --allow-code shapely "):
        shapes.find(name)
    assert "shapely" not in sys.modules
    assert shapes.find(name, ["shapely"]) is shapes.typed(name)
    assert shapes.find(name, "shapely:Square").__name__ == "Square"


def test_typed_settings_allow_what_they_name_and_no_other(shapes):
    typed = Typed()
    shapes.find("square", typed)
    shapes.find("own", typed)
    assert typed == ["shapely:Square"]
    with pytest.raises(FedsslError, match="it names code of package 'os'"):
        shapes.find("os:system", tuple(typed))
    with pytest.raises(FedsslError, match=r"package '(posix|nt)'"):
        shapes.find("shapely:system", ["shapely"])


def test_unknown_names_and_what_is_no_entry(shapes):
    with pytest.raises(
        FedsslError, match=r"there is no 'squar' \(did you mean 'square'\?\); known: own, square, or 'p"
    ):
        shapes.find("squar")
    with pytest.raises(FedsslError, match=r"shape\.name: 'shapely:value' is no function or class"):
        shapes.typed("shapely:value")
    with pytest.raises(FedsslError, match="cannot import 'shapely:Round'"):
        shapes.typed("shapely:Round")


@pytest.mark.parametrize("table", NAMED)
def test_every_table_keeps_the_rule(table):
    """A name in settings that were read imports nothing; typed, it must be what the table needs."""
    with pytest.raises(FedsslError, match=rf"^{table}\.name: it names code of package 'shutil'"):
        NAMED[table].find("shutil:rmtree")
    if NAMED[table].base:
        with pytest.raises(FedsslError, match=rf"^{table}\.name: 'shutil:rmtree' is no {NAMED[table].base.__name__}"):
            typed_config("smoke", {f"{table}.name": "shutil:rmtree"})


@pytest.mark.parametrize("key", ["engine", "data.layout"])
def test_names_inside_a_table_keep_it_too(key):
    with pytest.raises(FedsslError, match=rf"^{key}: it names code of package 'shutil'"):
        load_config("folder", {"data.path": ".", key: "shutil:rmtree"})


def test_every_own_entry_can_be_imported():
    for registry in (*NAMED.values(), ENGINES):
        assert all(registry[name] for name in registry)
