"""The words of a report, for runs written by hand."""

import tomllib
from importlib import resources

import pytest
from written_runs import CONFIG, ROUNDS, SUMMARY, changed, write_run

from fedssl.data.partition import PARTITIONS
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS
from fedssl.reports import words
from fedssl.reports.run_record import RunRecord


def record(folder, **parts):
    return RunRecord.read(write_run(folder / "run", **parts))


@pytest.mark.parametrize(
    ("kind", "registry"),
    [("method", METHODS), ("rule", UPDATE_RULES), ("aggregation", AGGREGATORS), ("partition", PARTITIONS)],
)
def test_there_are_words_for_all_that_comes_with_fedssl_and_for_nothing_else(kind, registry):
    text = (resources.files("fedssl.reports") / "templates" / "words.toml").read_text(encoding="utf-8")
    assert set(tomllib.loads(text)[kind]) == set(registry)


def test_one_client_is_not_called_a_federation(tmp_path):
    who, how, _ = words.story(record(tmp_path, summary=changed(SUMMARY, data__clients=[80])), 10)
    assert "averag" not in how
    assert who == "One client held all 80 images (synthetic images), without their labels: nothing was federated."


def test_sampling_epochs_and_missing_rounds_are_told(tmp_path):
    config = changed(CONFIG, client_sampling={"clients_per_round": 3}, local_training__epochs=5, rounds=90)
    _, how, _ = words.story(record(tmp_path, config=config), 10)
    assert how.startswith(
        "In 2 of 90 rounds, 3 clients drawn at random trained 5 times through their own images (BYOL:"
    )


def test_a_rule_that_nobody_has_described_is_named(tmp_path):
    config = changed(CONFIG, update_rule={"name": "newest"}, partition={"name": "by-hand", "num_clients": 2})
    who, how, _ = words.story(record(tmp_path, config=config), None)
    assert "Two clients held 80 images between them (synthetic images; by-hand)" in who
    assert how.endswith("The server averaged what they sent. newest")


def test_an_aggregate_that_is_no_average_is_not_called_one(tmp_path):
    _, how, _ = words.story(record(tmp_path, config=changed(CONFIG, aggregation={"name": "median"})), None)
    assert "As their average the server took the middle one of the values that they sent" in how
    assert "The server averaged" not in how


def test_outcome_with_and_without_numbers(tmp_path):
    *_, outcome = words.story(record(tmp_path), None)
    assert outcome.endswith("(kNN): 25.0\u00a0% rightly by the untrained network, 37.5\u00a0% after training.")
    bare = record(tmp_path / "bare", rounds=ROUNDS[:1], summary={"status": "interrupted", "rounds": 0})
    assert words.story(bare, None)[-1] == "No accuracy was recorded."
    assert [tile.label for tile in words.tiles(bare)] == ["Rounds"]


def test_images_that_nobody_held_are_warned_of(tmp_path):
    assert words.warnings(record(tmp_path)) == []
    found = words.warnings(record(tmp_path / "b", summary=changed(SUMMARY, data__unused=1234)))
    assert found == ["1,234 training images belonged to no client (they could not be shared out evenly)."]
