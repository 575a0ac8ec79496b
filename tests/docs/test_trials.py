"""The trials' list, their records and the page that shows them must agree."""

import pytest

from fedssl.experiment.config.layers import load_config
from scripts import trials
from tests.helpers.small import TINY

LISTED = trials.listed()


def test_the_page_shows_the_records_as_they_are():
    page = trials.DOCS.read_text()
    assert trials.with_tables(page) == page, "run `make results`"


# A trial of a setting that was taken out again keeps its record and says so.
@pytest.mark.parametrize("name", [name for name, trial in LISTED.items() if "gone" not in trial])
def test_a_trial_looks_at_validation_images_only_and_its_settings_exist(name):
    config = load_config(LISTED[name]["preset"], LISTED[name]["settings"])
    assert config.data.settings["validation_images"] == 5000
    assert (config.run.engine, config.run.threads) == ("in-process", 1), "core-seconds of one process and thread"


def test_every_record_is_that_of_a_listed_trial():
    stored = {path.stem for path in trials.RECORDS.glob("*.json")}
    assert stored <= set(LISTED)
    for record in trials.records():
        trial = LISTED[record["name"]]
        assert (record["like"], record["changed"]) == (trial.get("like"), trial["set"])
        assert record["command"] == trials.command(trial)


def test_the_fair_baseline_is_the_better_one():
    record = {"random": {"knn": 30.0, "knn_reestimated": 33.0, "linear": 36.0, "linear_reestimated": 35.0}}
    assert (trials.fair_random(record, "knn"), trials.fair_random(record, "linear")) == (33.0, 36.0)


def test_a_record_says_what_was_run_and_what_it_cost(tmp_path):
    quick = {**TINY, "data.validation_images": 20, "evaluation.linear_probe": True, "evaluation.linear_epochs": 2}
    trial = {"preset": "smoke", "settings": {**quick, "network.stem": "whitened"}, "set": {"network.stem": "whitened"}}
    record = trials.run_one("tiny", trial, tmp_path)
    assert record["command"].endswith("--set evaluation.linear_epochs=2 --set network.stem=whitened")
    assert (
        set(record["validation"]) == {"knn", "knn_reestimated", "linear", "linear_reestimated"} == set(record["random"])
    )
    assert min(record["core_seconds"].values()) >= 0
    assert trials.row(record).startswith("| `tiny` | ")
    assert trials.settings(record) == "- `tiny`: network.stem whitened"
