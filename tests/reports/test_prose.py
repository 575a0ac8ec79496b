"""The words of a report, for runs written by hand."""

import json
import tomllib
from importlib import resources

import pytest

from fedssl.data.partition import PARTITIONS
from fedssl.experiment.records.run_record import RunRecord
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS
from fedssl.reports import prose as words
from fedssl.reports import run_figures
from tests.helpers.written_runs import CONFIG, ROUNDS, SUMMARY, changed, client, write_run


def record(folder, **parts):
    return RunRecord.read(write_run(folder / "run", **parts))


@pytest.mark.parametrize(
    ("kind", "registry"),
    [("method", METHODS), ("rule", UPDATE_RULES), ("aggregation", AGGREGATORS), ("partition", PARTITIONS)],
)
def test_there_are_words_for_all_that_comes_with_fedssl_and_for_nothing_else(kind, registry):
    text = (resources.files("fedssl.reports") / "templates" / "prose.toml").read_text(encoding="utf-8")
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
    assert outcome.endswith(
        "(kNN): 25.0\u00a0% correctly by the random encoder in the BatchNorm mode that suits it better, 37.5\u00a0% "
        "after training."
    )
    bare = record(tmp_path / "bare", rounds=ROUNDS[:1], summary={"status": "interrupted", "rounds": 0})
    assert words.story(bare, None)[-1] == "No accuracy was recorded."
    assert [tile.label for tile in words.tiles(bare)] == ["Rounds"]


@pytest.mark.parametrize(
    ("interval", "tone"), [([0.01, 0.2], "better"), ([-0.01, 0.2], "same"), ([-0.2, -0.01], "worse")]
)
def test_the_verdict_is_the_first_card_in_the_colour_of_its_interval(tmp_path, interval, tone):
    best = {"accuracy": 0.4, "batchnorm": "running", "sd": None}
    gain = {"knn": {"baseline": best, "trained": best, "interval": interval}}
    first, *others = words.tiles(record(tmp_path, summary=changed(SUMMARY, gain=gain, initial={}, final={})))
    assert (first.label, first.tone) == ("Verdict", tone)
    assert {tile.tone for tile in others} == {""}
    style = (resources.files("fedssl.reports") / "templates" / "style.css").read_text(encoding="utf-8")
    assert f".tile.{tone} {{" in style


def test_images_that_nobody_held_are_warned_of(tmp_path):
    assert words.warnings(record(tmp_path)) == []
    found = words.warnings(record(tmp_path / "b", summary=changed(SUMMARY, data__unused=1234)))
    assert found == ["1,234 training images belonged to no client (they could not be shared out evenly)."]


def test_clients_that_failed_and_changes_on_the_way_are_warned_of(tmp_path):
    failed = [{"client": 1, "code": "non-finite", "detail": "x"}]
    rounds = [ROUNDS[0], ROUNDS[1] | {"failures": failed}, ROUNDS[2] | {"failures": failed}]
    folder = write_run(tmp_path / "a", rounds=rounds)
    resumed = [{"after_round": 1, "changed": {"torch_threads": [2, 1]}}, {"after_round": 2, "changed": {}}]
    (folder / "environment.json").write_text(json.dumps({"resumed": resumed}))
    assert words.warnings(RunRecord.read(folder)) == [
        "Client 1 failed 2 times (non-finite; rounds 1, 2); the rounds continued without it.",
        "The run was resumed after round 1 with changes: torch_threads 2 → 1.",
    ]


def test_clients_go_by_their_names_in_failures_warnings_and_legends(tmp_path):
    failed = [{"client": 1, "code": "timeout", "detail": ""}]
    collapsed = [client(0), client(1, feature_std=0.01)]
    rounds = [ROUNDS[0], ROUNDS[1] | {"failures": failed}, ROUNDS[2] | {"clients": collapsed}]
    named = record(tmp_path, rounds=rounds, summary=changed(SUMMARY, data__client_names=["north", "south"]))
    failure, warning = words.warnings(named)
    assert failure == "Client 1 (south) failed once (timeout; rounds 1); the rounds continued without it."
    assert warning.startswith("Client 1 (south): its features collapsed in round 2")
    for figure in (run_figures.loss, run_figures.collapse):
        assert [key.label for key in figure(named, "run1").legend] == ["client 0 (north)", "client 1 (south)"]


def test_a_run_without_labels_says_that_no_accuracy_can_be_given(tmp_path):
    spread = {"backbone_std": 0.3}
    summary = changed(SUMMARY, initial=spread, final=spread, data__refused=1234)
    rounds = [{key: value for key, value in one.items() if key not in ("knn", "linear")} for one in ROUNDS]
    unlabelled = record(tmp_path, rounds=rounds, summary=summary)
    assert words.story(unlabelled, None)[-1].startswith("No accuracy can be given: there were no labelled test images.")
    assert {"kNN accuracy", "Linear probe"} & {tile.label for tile in words.tiles(unlabelled)} == set()
    assert words.warnings(unlabelled) == [
        "1,234 files could not be used and were left out; refused.jsonl names each of them."
    ]
