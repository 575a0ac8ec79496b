"""The files around the code say the same as each other: Pythons, make targets, tools, the citation."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedssl

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_make_targets_and_nothing_else(path):
    jobs = read(path.relative_to(ROOT))["jobs"]
    calls = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert calls
    assert [call for call in calls if call.split()[0] != "make" or call.split()[1] not in TARGETS] == []


def test_the_matrix_the_classifiers_and_the_range_name_the_same_pythons():
    name = "Programming Language :: Python :: "
    said = [line.removeprefix(name) for line in PROJECT["project"]["classifiers"] if line.startswith(f"{name}3.")]
    assert read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == said
    first, last = (int(version.partition(".")[2]) for version in (said[0], said[-1]))
    assert PROJECT["project"]["requires-python"] == f">=3.{first},<3.{last + 1}"
    assert f"((3, {first}) <= sys.version_info[:2] <= (3, {last}))" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"]
    assert "version" not in read("CITATION.cff")
    places = [
        *set(ROOT.glob("*.*")) - set(ROOT.glob(".coverage*")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "src").rglob("*.py"),
    ]
    assigned = rf"(?m)^\s*_*version_*\s*[:=]\s*[\"']?{re.escape(fedssl.__version__)}"
    text = {path: path.read_text(encoding="utf-8") for path in places if path.is_file()}
    assert [path.name for path, shown in text.items() if re.search(assigned, shown)] == ["__init__.py"]


def test_the_citation_names_the_software_and_the_paper():
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    (paper,) = citation["references"]
    assert [one["family-names"] for one in paper["authors"]] == ["Zhuang", "Wen", "Zhang"]
    (number,) = [one["value"] for one in paper["identifiers"]]
    assert PROJECT["project"]["urls"]["Paper"].endswith(number.removeprefix("arXiv:"))


def test_forms_for_issues_ask_for_something():
    for name in ("bug", "idea"):
        form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
        assert {"name", "description", "body"} <= set(form)
        assert any(part.get("validations", {}).get("required") for part in form["body"])
    assert {update["package-ecosystem"] for update in read(".github/dependabot.yml")["updates"]} >= {"pip"}


def test_commits_are_checked_with_tools_of_make_check():
    check = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck:")[2].partition("\n\n")[0]
    for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"]:
        tool = hook["entry"].split()[0].removeprefix(".venv/")
        assert tool.removeprefix("bin/") in check


def test_editors_have_the_line_length_of_the_formatter():
    settings = (ROOT / ".editorconfig").read_text(encoding="utf-8")
    assert f"max_line_length = {PROJECT['tool']['ruff']['line-length']}\n" in settings
