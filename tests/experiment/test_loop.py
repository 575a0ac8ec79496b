"""What the observers of a run are told, and when."""

import json
from types import SimpleNamespace

from fedssl.experiment.experiment import load
from fedssl.experiment.observers import Shown
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.totals import Totals
from tests.helpers.small import TINY

SETTINGS = TINY | {"rounds": 2, "engine": "in-process", "profile": True}


def collapsed(number):
    client = {"client": 3, "feature_std": 0.001, "mu": 0.5, "bytes_up": 7, "bytes_down": 5}
    return {"round": number, "clients": [client], "ema_share": 1.0, "loss": 0.25, "core_seconds": {"training": 2.0}}


def test_a_round_is_recorded_and_saved_before_its_observers_hear_of_it_and_profiled_after(tmp_path):
    seen = []

    class Looks(QuietView):
        def round_finished(self, record):
            lines = {name: tmp_path / "run" / f"{name}.jsonl" for name in ("rounds", "profile")}
            counts = [len(path.read_text().splitlines()) if path.exists() else 0 for path in lines.values()]
            saved = json.loads((newest(tmp_path / "run") / "manifest.json").read_text())["round"]
            seen.append((record["round"], *counts, saved))

    load("smoke", SETTINGS).run(tmp_path / "run", Looks())
    assert seen == [(0, 1, 0, 0), (1, 2, 1, 1), (2, 3, 2, 2)]


def newest(run):
    return max((run / "checkpoints").iterdir())


def test_observers_of_a_resumed_run_know_its_recorded_rounds_and_say_nothing_twice():
    said, totals, fed = [], Totals(), Totals()
    health = RunWarnings("client {}".format, said.append)
    resumed = SimpleNamespace(recorded=[collapsed(1), collapsed(2)])
    for observer in (totals, health):
        observer.start(resumed)
        observer.round_finished(collapsed(3), None)
    for number in (1, 2, 3):
        fed.round_finished(collapsed(number), None)
    assert totals.values() == fed.values()
    assert (totals.values()["bytes_up"], totals.values()["core_seconds"]["training"]) == (21, 6.0)
    assert said == []
    fresh = RunWarnings("client {}".format, said.append)
    fresh.start(SimpleNamespace(recorded=[]))
    fresh.round_finished(collapsed(1), None)
    assert [text.startswith("warning: client 3: its features collapsed in round 1") for text in said] == [True]


def test_a_view_is_told_title_notes_and_where_the_run_is_resumed():
    lines = []

    class Says(QuietView):
        def start(self, title, rounds, steps, done):
            lines.append((title, rounds, steps, done))

        def say(self, text):
            lines.append(text)

    config = SimpleNamespace(run=SimpleNamespace(rounds=9))
    about = {"title": "a run", "steps": 30, "notes": ["warning: hot"], "config": config}
    Shown(Says()).start(SimpleNamespace(**about, done=None))
    Shown(Says()).start(SimpleNamespace(**about, done=4))
    begun, resumed = lines[:2], lines[2:]
    assert begun == [("a run", 9, 30, 0), "warning: hot"]
    assert resumed[:2] == [("a run", 9, 30, 4), "warning: hot"]
    assert "after round 4" in resumed[2]
