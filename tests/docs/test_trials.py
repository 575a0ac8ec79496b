"""The lists of recorded runs, their records and the pages that show them must agree."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from fedssl.experiment.config.layers import typed_config
from fedssl.experiment.config.preset_files import preset_names
from fedssl.methods import METHODS
from fedssl.paper.catalogue import find_studies
from fedssl.paper.plan import make_plan
from fedssl.paper.scales import find_scale
from scripts import autoscaler, frontier, levers, methods, rules, trials
from tests.helpers.small import TINY

LISTS = {one.name: one for one in trials.lists()}
RUNNABLE = [(one, trial) for one in LISTS.values() for trial in one.trials.values() if not trial.gone]


@pytest.mark.parametrize("name", LISTS)
def test_the_page_shows_the_records_as_they_are(name):
    for path in LISTS[name].pages:
        page = path.read_text()
        assert LISTS[name].shown_in(page) == page, f"{path.name}: run `make results`"


@pytest.mark.parametrize(("one", "trial"), RUNNABLE, ids=lambda value: value.name)
def test_the_settings_of_a_trial_exist_and_its_core_seconds_are_its_own(one, trial):
    config = typed_config(trial.preset, trial.settings)
    assert (config.run.engine, config.run.threads) == ("in-process", 1)


@pytest.mark.parametrize("name", ["trials", "methods-held-out"])
def test_settings_are_chosen_on_validation_images_alone(name):
    for trial in LISTS[name].trials.values():
        assert trial.settings["data.validation_images"] >= 2000


def test_the_page_of_methods_has_every_method_and_the_numbers_of_today():
    page = methods.PAGE.read_text()
    assert methods.filled(page) == page, "run `make results`"
    named = [row.split("`")[1] for row in methods._between(page, "methods").splitlines()[2:]]
    assert [name for name in named if name[0] != "+"] == list(METHODS)
    assert {name[1:] for name in named if name[0] == "+"} <= set(preset_names("algorithms"))


PICTURES = {
    frontier.PICTURE: frontier.read_records,
    rules.PICTURE: rules.read_records,
    autoscaler.PICTURE: autoscaler.accuracies,
}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_shows_the_records_of_today(path):
    with Image.open(path) as picture:
        assert picture.text["Shows"] == trials.fingerprint(PICTURES[path]()), "run `make results`"


def test_other_numbers_have_another_fingerprint():
    assert trials.fingerprint({"a": 1.0, "b": 2.0}) == trials.fingerprint({"b": 2.0, "a": 1.0})
    assert trials.fingerprint({"a": 1.0}) != trials.fingerprint({"a": 1.1})


def test_what_a_trial_changed_is_said_with_its_preset_and_how_to_read_it():
    trial = LISTS["rules"].trials["non-iid-fedprox"]
    assert trials.changes(trial) == "- `non-iid-fedprox`: preset cifar10-cpu+fedprox, update_rule.name replace"
    noted = dataclasses.replace(trial, like="iid", changed={"rounds": 3}, note="so")
    assert trials.changes(noted) == "- `non-iid-fedprox`: `iid` with rounds 3 (so)"


@pytest.mark.parametrize("name", LISTS)
def test_every_record_is_that_of_a_listed_run(name):
    one = LISTS[name]
    commands = {
        run: trials.command(trial.preset, settings) for trial in one.trials.values() for run, settings in trial.runs()
    }
    for path in (trials.RESULTS / name).glob("*.json"):
        record = trials.read_json(path)
        assert record["name"] == path.stem
        assert record["command"] == commands[path.stem]


def test_the_fair_baseline_is_the_better_one():
    record = {"random": {"knn": 30.0, "knn_reestimated": 33.0, "linear": 36.0, "linear_reestimated": 35.0}}
    assert (trials.fair_random(record, "knn"), trials.fair_random(record, "linear")) == (33.0, 36.0)


def test_seeds_become_runs_and_a_row_has_their_mean_and_spread():
    trial = trials.Trial("one", "smoke", "", {}, {"rounds": 2}, seeds=2)
    assert list(trial.runs()) == [("one", {"rounds": 2}), ("one-seed-1", {"rounds": 2, "seed": 1})]
    spent, random = {"training": 10.0, "evaluation": 2.0}, {"knn": 30.0, "linear": 35.0, "linear_reestimated": 36.0}
    found = [{"core_seconds": spent, "random": random, "trained": {"knn": 40.0, "linear": x}} for x in (50.0, 52.0)]
    assert (
        trials.row(trial, found)
        == "| `one` | 2 | 10 + 2 | 30.0 ± 0.0 / 36.0 ± 0.0 | 40.0 ± 0.0 / 51.0 ± 1.4 | +15.0 ± 1.4 |"
    )


def test_a_list_without_records_says_so(tmp_path):
    assert dataclasses.replace(LISTS["demo"], results=tmp_path).table() == "Not run yet.\n"


def test_a_record_says_what_was_run_and_what_it_cost(tmp_path):
    quick = {**TINY, "data.validation_images": 20, "evaluation.linear_probe": True, "evaluation.linear_epochs": 2}
    changed = {"network.stem": "whitened"}
    trial = trials.Trial("tiny", "smoke", "", changed, {**quick, **changed})
    record = trials.run_one(trial, "tiny", trial.settings, tmp_path / "run")
    assert record["command"].endswith("--set evaluation.linear_epochs=2 --set network.stem=whitened")
    assert set(record["trained"]) == {"knn", "knn_reestimated", "linear", "linear_reestimated"} == set(record["random"])
    assert min(record["core_seconds"].values()) >= 0
    assert trials.row(trial, [record]).startswith("| `tiny` | 1 | ")
    assert trials.changes(trial) == "- `tiny`: network.stem whitened"


def test_the_frontier_has_what_no_cheaper_trial_beats():
    costs_and_accuracies = [(300, 58.0), (60, 50.0), (120, 49.0), (100, 52.0)]
    records = [
        {"core_seconds": {"training": seconds}, "trained": {"linear": linear}}
        for seconds, linear in costs_and_accuracies
    ]
    assert [frontier.minutes(one) * 60 for one in frontier.best_so_far(records)] == [60, 100, 300]


LEVERS = """
pages = []
preset = "cifar10-noniid"
[common]
"data.train_images" = 100
"data.validation_images" = 5000
"local_training.epochs" = 1
"rounds" = 10
[trials.plain]
set = {}
[trials.wide]
like = "plain"
set = { "network.width" = 24, "rounds" = 6 }
[trials.two-changes]
like = "plain"
set = { "network.width" = 24, "local_training.lr" = 0.2 }
[trials.four-times-as-long]
like = "plain"
set = { "data.train_images" = 400 }
[trials.without-record]
like = "plain"
set = { "local_training.lr" = 0.2 }
"""


def test_a_lever_is_one_change_at_about_the_same_cost(tmp_path):
    (tmp_path / "levers.toml").write_text(LEVERS)
    (tmp_path / "levers").mkdir()
    for name, linear in {"plain": 44.0, "wide": 43.98, "two-changes": 50.0, "four-times-as-long": 60.0}.items():
        (tmp_path / "levers" / f"{name}.json").write_text(json.dumps({"trained": {"linear": linear}}))
    known = levers.levers(trials.TrialList.read(tmp_path / "levers.toml"))
    assert known == {"network.width 24": {"byol": "+0.0 (`plain`)"}}
    assert levers.table(known).endswith("| change | byol |\n|---|---|\n| network.width 24 | +0.0 (`plain`) |\n")


def test_the_page_has_the_levers_as_the_records_are():
    page = levers.PAGE.read_text()
    assert levers.shown_in(page) == page, "run `make results`"


def rule_records(linear, *clients):
    return [
        {
            "seed": 0,
            "trained": {"linear": linear},
            "clients": {str(number): value for number, value in enumerate(clients)},
            "random": {"knn": 30.0, "linear": 34.0},
        }
    ]


def test_what_a_rule_wins_back_is_counted_from_the_plain_average():
    known = {
        "central": rule_records(64.0, 58.0),
        "iid": rule_records(59.5, 52.0, 53.0),
        "non-iid": rule_records(57.0, 49.0, 48.0),
        "non-iid-fedema": rule_records(58.2, 50.0, 51.0),
    }
    table = rules.table(known)
    assert "From central to IID clients 4.5 points are lost, from IID to non-IID clients another 2.5" in table
    assert "| `non-iid` | 1 | 57.0 |  | 48.0 (1), 49.0 (0) |" in table
    assert "| `non-iid-fedema` | 1 | 58.2 | +1.2 | 50.0 (0), 51.0 (1) |" in table
    left, right = rules.draw(known).axes
    assert [bar.get_width() for bar in left.containers[-1]] == pytest.approx([30.0, 25.5, 23.0, 24.2])
    assert sum(len(dots.get_offsets()) for dots in right.collections) == 7


def test_the_page_has_the_table_of_rules_as_the_records_are():
    page = rules.PAGE.read_text()
    assert rules.shown_in(page) == page, "run `make results`"


def test_runs_with_other_numbers_of_rounds_are_those_of_the_scale_night_but_for_their_rounds():
    """And so their accuracies may stand beside those of `fedssl paper` in one picture."""
    (study,) = find_studies(["linear-evaluation"])
    for name, trial in LISTS["rounds"].trials.items():
        algorithm, rounds = name.rsplit("-", 1)
        plan = make_plan(
            [study], find_scale("night"), Path("x"), 1, [autoscaler.ROWS[algorithm]], ["CIFAR-10, Non-IID"]
        )
        (run,) = plan.runs.values()
        ours = typed_config(trial.preset, trial.settings)
        assert ours.run.rounds == int(rounds)
        of_night = {"rounds": run.config.run.rounds, "evaluation.linear_probe": False}  # the probe: after the run
        assert typed_config(trial.preset, trial.settings | of_night) == run.config


def test_the_picture_of_rounds_has_what_both_algorithms_have(tmp_path):
    (tmp_path / "rounds").mkdir()
    shutil.copy(trials.RESULTS / "rounds.toml", tmp_path)
    for name, accuracy in (("fedbyol-10", 41.0), ("fedema-10", 39.0), ("fedema-20", 44.0)):
        (tmp_path / "rounds" / f"{name}.json").write_text(json.dumps({"trained": {"linear": accuracy}}))
    known = autoscaler.accuracies(tmp_path, tmp_path / "paper")
    assert known == {"fedbyol": {10: [41.0]}, "fedema": {10: [39.0]}}
    assert len(autoscaler.draw(known).axes[0].containers) == 2
