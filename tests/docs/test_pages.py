"""Every page of the documentation: short lines, links and modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_lines_are_short(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


@each_page
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@each_page
def test_modules_that_are_named_exist(page):
    """A path with a folder, from the root of the repository or of the package."""
    named = re.findall(r"(?<![\w/.])((?:[a-z_]+/)+[a-z_]+\.py)\b", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "src/fedssl" / path).exists()] == []


def test_the_architecture_fits_one_page():
    assert len((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()) < 750
