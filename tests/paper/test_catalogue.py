"""Every experiment loads, its rows are its own, and its printed numbers are the paper's where its source is at hand."""

import re
from pathlib import Path

import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.config.preset_files import preset_names
from fedssl.paper.catalogue import NO_CELL, NOT_REACHED, Printed, Study, find_studies, load_studies
from tests.helpers.latex import captions, find_source, floats, read_source

STUDIES = load_studies()
# Pictures of how something works; there is nothing to run.
ILLUSTRATIONS = {
    "fig:framework": "the four steps of a round",
    "fig:dynamic_ema": "FedEMA's update, drawn",
    "fig:ssl-methods": "how the four methods differ, drawn",
}
SMALL = {
    "name": "small",
    "position": 1,
    "number": "Table 0",
    "labels": ["tab:none"],
    "title": "t",
    "shows": "s",
    "metric": "linear",
    "preset": "cifar10-noniid",
    "columns": [{"label": "a"}, {"label": "b", "settings": {"rounds": 7, "update_rule": {"tau": 0.1}}}],
    "rows": [
        {"label": "one", "algorithm": "fedema", "paper": ["1.50 ± 0.25", "-"]},
        {"label": "two", "algorithm": "fedema", "settings": {"update_rule": {"tau": 0.2}}},
    ],
}


def test_numbers_are_read_as_printed():
    assert Printed.parse("79.44 ± 0.99") == Printed("79.44 ± 0.99", 79.44, 0.99)
    assert Printed.parse("76.7") == Printed("76.7", 76.7)
    assert Printed.parse("not reached") == Printed("not reached", None)
    assert Printed.parse("") is None


def test_a_cell_has_the_settings_of_column_and_row():
    study = Study.model_validate(SMALL)
    cells = list(study.cells())
    assert [(cell.row.label, cell.column.label) for cell in cells] == [("one", "a"), ("two", "a"), ("two", "b")]
    assert cells[0].preset == "cifar10-noniid+fedema"
    assert cells[0].printed == Printed("1.50 ± 0.25", 1.5, 0.25)
    assert cells[2].settings == {"rounds": 7, "update_rule.tau": 0.2}, "the row's over the column's"
    assert cells[2].printed is None
    assert study.cell(study.rows[0], study.columns[1]) is None, "the paper has no such run"


def test_a_sweep_sets_one_number():
    swept = {key: value for key, value in SMALL.items() if key != "columns"}
    rows = [
        {"label": "x", "algorithm": "fedema"},
        {"label": "fixed", "algorithm": "fedbyol", "sweep_keys": []},
        {"label": "both", "algorithm": "constant-mu", "sweep_keys": ["a", "b"]},
    ]
    sweep = {"name": "τ", "keys": ["update_rule.tau"], "values": [0.5, 1.0]}
    study = Study.model_validate({**swept, "rows": rows, "sweep": sweep})
    assert [column.label for column in study.columns] == ["τ = 0.5", "τ = 1.0"]
    second = [study.cell(row, study.columns[1]).settings for row in study.rows]
    assert second == [{"update_rule.tau": 1.0}, {}, {"a": 1.0, "b": 1.0}]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rows": [{"label": "one", "algorithm": "fedema", "paper": ["1"]}]}, "1 printed cells for 2 columns"),
        ({"rows": [{"label": "one", "algorithm": "fedema", "group": "G"}]}, "there is no group 'G'"),
        ({"metric": "luck"}, "metric"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_file_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        Study.model_validate({**SMALL, **change})


def test_experiments_are_found_by_name():
    assert [study.name for study in find_studies(["lambda", "tau", "lambda"])] == ["lambda", "tau"]
    assert len(find_studies(["all"])) == len(STUDIES)
    with pytest.raises(FedsslError, match=r"there is no experiment 'lambdas' \(did you mean 'lambda'\?\)"):
        find_studies(["lambdas"])


def test_positions_follow_the_paper():
    assert [study.position for study in STUDIES.values()] == list(range(1, len(STUDIES) + 1))


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_rows_and_columns_are_unique(study):
    titles = [row.title for row in study.rows]
    labels = [column.label for column in study.columns]
    assert len(set(titles)) == len(titles)
    assert len(set(labels)) == len(labels)
    made = [(cell.preset, str(sorted(cell.settings.items())), cell.metric, cell.row.target) for cell in study.cells()]
    constant = {row.title for row in study.rows if row.sweep_keys == []}
    moving = [one for one, cell in zip(made, study.cells(), strict=True) if cell.row.title not in constant]
    assert len(set(moving)) == len(moving), "two cells are the same run and number"


OURS = ("FedCA, ResNet-18", "FedEMA, the authors' divergence")  # rows that the paper has not


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_what_is_not_printed_is_said(study):
    silent = any(cell.printed is None and cell.row.title not in OURS for cell in study.cells())
    assert silent == bool(study.not_printed)
    assert {row.algorithm for row in study.rows} <= set(preset_names("algorithms"))


def test_the_documentation_names_experiments_that_exist():
    """What a departure affects: what follows "Affects" up to the full stop."""
    root = Path(__file__).parents[2]
    text = (root / "docs" / "deviations.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+)`", " ".join(re.findall(r"Affects ([^.;]*)[.;]", text)))
    assert len(named) > 15
    assert set(named) <= set(STUDIES)


# With the paper's own text.


@pytest.fixture(scope="module")
def source():
    path = find_source()
    if path is None:
        pytest.skip("the paper's LaTeX is not here: name it in FEDSSL_PAPER")
    return read_source(path)


def test_every_printed_number_is_the_papers(source):
    """Row by row, both ways: no row of a table is missing, none is invented, every digit is the same."""
    in_paper, ours = [], []
    for part in floats(source):
        labels = set(part.labels) - {"fig:stop-grad"}  # the paper has this label twice
        rows = [row for tabular in part.tabulars for row in tabular if row[0] != ["10 (iid)"]]
        in_paper += [(part.labels[-1], *words[:2], tuple(numbers)) for words, numbers in rows]
        for study in STUDIES.values():
            if rows and labels & set(study.labels):
                ours += [(part.labels[-1], *_words(row), _numbers(row)) for row in study.rows if row.paper]
    assert len(in_paper) == 93
    assert sorted(in_paper) == sorted(set(ours))


def _words(row):
    """As the table has them: it leaves FedBYOL's name out where the head has it."""
    label = (
        row.label.removeprefix("FedBYOL ") if row.label.endswith("stop-grad") and "EMA" not in row.label else row.label
    )
    return [label, row.group] if row.group else [label]


def _numbers(row):
    return tuple(NO_CELL if text == NOT_REACHED else text for text in row.paper)


def test_numbers_that_are_only_in_the_text(source):
    """μ of 0.9 and 0.9."""
    [row] = [row for row in STUDIES["mu-combinations"].rows if row.paper]
    assert row.paper[-1] == "54.52"
    assert re.search(r"mu_o = 0\.9\$ and \$\\mu_p = 0\.9\$ is only 54\.52", source)


def test_every_table_and_figure_is_an_experiment(source):
    labels = {label for part in floats(source) for label in part.labels}
    covered = {label for study in STUDIES.values() for label in study.labels}
    assert labels - covered - set(ILLUSTRATIONS) == set()
    assert covered - labels == set(), "labels that the paper does not have"


def test_numbers_of_tables_and_figures(source):
    numbered = captions(source)
    for study in STUDIES.values():
        known = [numbered[label] for label in study.labels if label in numbered]
        assert known, study.name
        assert known[0] == study.number.partition(" (")[0], study.name
