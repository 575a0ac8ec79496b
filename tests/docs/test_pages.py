"""Every page of the documentation: short lines, links and modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
MOST_WORDS = {
    "README.md": 600,
    "docs/architecture.md": 600,
    "docs/deployment.md": 1375,
    "docs/continue.md": 625,
    "docs/deviations.md": 1000,
    "docs/evaluation.md": 750,
    "docs/index.md": 200,
    "docs/methods.md": 750,
    "docs/networks.md": 475,
    "docs/performance.md": 760,
    "docs/plugin.md": 350,
    "docs/privacy.md": 675,
    "docs/reliability.md": 900,
    "docs/reports.md": 450,
    "docs/reproducing.md": 1300,
    "docs/results.md": 450,
    "docs/run-folder.md": 225,
    "docs/scale.md": 680,
    "docs/secure-aggregation.md": 640,
    "docs/threat-model.md": 1325,
    "docs/training.md": 300,
    "docs/tutorial.md": 475,
    "docs/your-data.md": 875,
}
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


def words(text):
    """How many words somebody wrote by hand: neither code nor what a script puts between marks."""
    text = re.sub(r"(?ms)^<!-- (?!end)[^>]* -->\n.*?^<!-- end of [^>]*-->$", "", text)
    return len(re.sub(r"(?ms)^```.*?^```$", "", text).split())


def test_words_of_code_and_of_scripts_are_not_counted():
    page = "# Two words\n\n```sh\na b\n```\n\n<!-- results: x -->\na | b\n<!-- end of results -->\n\nand `one` more\n"
    assert words(page) == 6


@pytest.mark.parametrize(("name", "most"), MOST_WORDS.items())
def test_pages_are_short(name, most):
    """Who adds to a page takes something else away, or moves it to the code (`scripts/reference.py`)."""
    assert words((ROOT / name).read_text(encoding="utf-8")) <= most
