"""The website's list of pages and the pages that are made from the code; `make docs` builds all of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import fedssl
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.texts import flatten
from scripts import website

ROOT = Path(__file__).parents[2]
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages(value)


def test_every_page_is_listed_once():
    written = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(pages(SETTINGS["nav"])) == sorted([*written, *website.GENERATED, *website.FROM_ROOT])


def test_nothing_is_fetched_to_build_or_to_read_it():
    assert SETTINGS["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url"} & set(SETTINGS)
    assert all("//" not in path for path in SETTINGS["extra_css"])


@pytest.mark.parametrize("preset", ["smoke", "folder", "continue"])
def test_every_setting_of_a_run_is_described(preset):
    page = website.settings_page()
    named = {key for key in flatten(load_config(preset).as_raw()) if not key.endswith(".name")}
    assert [key for key in named if f"| `{key}` |" not in page] == []


def test_a_setting_is_shown_with_its_default_its_range_and_its_meaning():
    page = website.settings_page()
    assert "| `rounds` | `100` | a whole number 1 or more |" in page
    assert "| `local_training.trust` | `0.001` | a number above 0 | of lars: the length of a step" in page
    assert "### fedema { #update_rule-fedema }" in page


def test_commands_are_shown_with_options_and_examples():
    page = website.command_page()
    for command in ("run", "paper run", "paper", "data inspect", "certificates make", "bench methods"):
        assert f"\n## fedssl {command}\n" in page
    assert "```sh\nfedssl run smoke\nfedssl run cifar10-cpu+fedbyol --set rounds=30 --out runs/byol\n" in page
    assert "| `--set KEY=VALUE` | override a setting; may be repeated |" in page
    assert "| `PRESET&#124;FILE` | a preset, PRESET+ALGORITHM, or a .toml file |" in page


def test_every_public_name_is_in_the_python_reference():
    page = website.python_page()
    assert [name for name in fedssl.__all__ if f"::: fedssl.{name}\n" not in page] == []


def test_examples_of_docstrings_become_code():
    module = website.griffe.visit(
        "m", Path("m.py"), 'def f():\n    """Does.\n\n    >>> f()\n    1\n\n    Then.\n    """\n'
    )
    website.FencedExamples().on_instance(obj=module["f"])
    assert module["f"].docstring.value == "Does.\n\n```pycon\n>>> f()\n1\n```\n\nThen."


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](../SECURITY.md#b) [c](results.md#d)", "[a](security.md#b) [c](results.md#d)"),
        ("contributing.md", "[a](docs/results.md) ![b](docs/round.svg)", "[a](results.md) ![b](round.svg)"),
        ("deployment.md", "[a script](../examples/plugin)", "a script (`examples/plugin`)"),
        ("index.md", "[a](../none.py) [b](https://x.org)", "[a](../none.py) [b](https://x.org)"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_name_a_path(page, text, expected):
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert website.on_page_markdown(text, page=shown) == expected
