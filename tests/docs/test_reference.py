"""The lists that pages have from the code must be those of today's code."""

import pytest

from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.methods import METHODS
from fedssl.paper.catalogue import load_studies
from scripts import reference

PAGES = sorted(reference.DOCS.glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_the_lists_as_the_code_has_them(path):
    page = path.read_text(encoding="utf-8")
    assert reference.filled(page) == page, "run `make results`"


def test_every_list_stands_on_one_page():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert sorted(found[2] for found in reference.MARKS.finditer(text)) == sorted(reference.LISTS)


def test_departures_and_readings_are_all_there():
    departures, readings = reference.LISTS["departures"](), reference.LISTS["readings"]()
    for name, one in {**METHODS, **AGGREGATORS}.items():
        assert (f"`{name}`" in departures) == bool(one.departs)
    assert [name for name, study in load_studies().items() if study.read_as and f"`{name}`" not in readings] == []


def test_a_field_of_a_policy_has_what_holds_without_one_and_what_is_safe():
    shown = reference.LISTS["policy"]().splitlines()
    assert shown[0].startswith("- `approval` (automatic; ask): ")
    assert "- `max_rounds` (no limit; 500): rounds of a run, also counted here" in shown


def test_a_recipe_that_changes_another_shows_its_changes_alone():
    from fedssl.data.augmentation.recipes import RECIPES

    rows = list(reference.settings_table(RECIPES["weak-jitter"], "augmentation."))
    assert [row.split("`")[1] for row in rows[2:-1]] == [
        "augmentation.brightness",
        "augmentation.contrast",
        "augmentation.saturation",
        "augmentation.hue",
    ]
