"""The README of the package that is built: no link that leads nowhere outside the repository."""

import re

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from scripts.pypi_readme import as_shown
from tests.helpers.readme import README, ROOT

TEXT = "A ![picture](docs/a.svg)\n\n\nand [a page](docs/b.md#c), [x](https://x.org), [CITATION.cff](CITATION.cff)."


def test_without_an_address_links_become_names():
    assert as_shown(TEXT, "") == "A \n\nand a page (`docs/b.md#c`), [x](https://x.org), CITATION.cff."


def test_with_an_address_links_are_absolute():
    shown = as_shown(TEXT, "https://forge.org/fedssl/")
    assert "![picture](https://forge.org/fedssl/raw/HEAD/docs/a.svg)" in shown
    assert "[a page](https://forge.org/fedssl/blob/HEAD/docs/b.md#c), [x](https://x.org)" in shown


@pytest.mark.parametrize("repository", ["", "https://forge.org/fedssl"])
def test_the_readme_keeps_its_code_and_has_no_relative_link(repository):
    text = README.read_text(encoding="utf-8")
    shown = as_shown(text, repository)
    assert re.findall(r"\]\((?!https?:|#)", shown) == []
    assert re.findall(r"(?s)```.*?```", shown) == re.findall(r"(?s)```.*?```", text)


def test_the_package_has_it():
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    address = metadata.core.urls.get("Repository", "")
    assert metadata.core.readme == as_shown(README.read_text(encoding="utf-8"), address)
    assert metadata.core.readme_content_type == "text/markdown"
