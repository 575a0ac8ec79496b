"""Every page of the documentation: short lines, links and modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
MOST_WORDS = {
    "README.md": 480,
    "docs/architecture.md": 380,
    "docs/deployment.md": 1110,
    "docs/continue.md": 475,
    "docs/deviations.md": 780,
    "docs/evaluation.md": 600,
    "docs/index.md": 150,
    "docs/methods.md": 550,
    "docs/networks.md": 420,
    "docs/performance.md": 545,
    "docs/plugin.md": 300,
    "docs/privacy.md": 560,
    "docs/reliability.md": 750,
    "docs/reports.md": 290,
    "docs/reproducing.md": 510,
    "docs/results.md": 420,
    "docs/run-folder.md": 180,
    "docs/scale.md": 330,
    "docs/secure-aggregation.md": 570,
    "docs/threat-model.md": 1150,
    "docs/training.md": 230,
    "docs/tutorial.md": 370,
    "docs/your-data.md": 680,
}
MOST_IN_ALL = 11500  # half of what they once had
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
    """How many words and numbers somebody wrote by hand: neither code nor what a script puts between marks."""
    text = re.sub(r"(?ms)^<!-- (?!end)[^>]* -->\n.*?^<!-- end of [^>]*-->$", "", text)
    return len(re.findall(r"\S*\w\S*", re.sub(r"(?ms)^```.*?^```$", "", text)))


def test_words_of_code_and_of_scripts_are_not_counted():
    page = "# Two words\n\n```sh\na b\n```\n\n<!-- results: x -->\na | b\n<!-- end of results -->\n\n| and | `one` |\n"
    assert words(page) == 4


@pytest.mark.parametrize(("name", "most"), MOST_WORDS.items())
def test_pages_are_short(name, most):
    """Who adds to a page takes something else away, or moves it to the code (`scripts/reference.py`)."""
    assert words((ROOT / name).read_text(encoding="utf-8")) <= most


def test_all_pages_together_are_short():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages} == set(MOST_WORDS)
    assert sum(words(page.read_text(encoding="utf-8")) for page in pages) <= MOST_IN_ALL
