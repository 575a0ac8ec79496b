"""Runs in processes of their own: several at a time, failures named, Ctrl-C passed on; then all of it for real."""

import os
import signal
import sys
import threading
import time

import pytest
from made import SMOKE, plan_of, write

from fedssl.paper import carry_out as module
from fedssl.paper.carry_out import LOG, carry_out, commands_for, default_jobs


class Seen:
    """A watcher that remembers."""

    def __init__(self):
        self.lines, self.shares = [], []

    def started(self, run):
        self.lines.append(("started", run.config.run.seed))

    def ended(self, run, error):
        self.lines.append(("ended", run.config.run.seed, error))

    def progress(self, done):
        self.shares.append(done)


@pytest.fixture
def plan(tmp_path):
    return plan_of("predictor", tmp_path, seeds=3, rows=["FedBYOL"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


def scripts(monkeypatch, texts):
    """Each seed's run becomes these Python texts, one command each."""

    def commands(run, epochs):
        return [[sys.executable, "-c", text] for text in texts[run.config.run.seed]]

    monkeypatch.setattr(module, "commands_for", commands)


def test_a_failed_run_is_named_and_the_others_go_on(plan, monkeypatch):
    scripts(monkeypatch, [["print('fine')", "print('too')"], ["print('oh no'); raise SystemExit(3)", "1"], ["pass"]])
    seen = Seen()
    outcome = carry_out(plan, 1, seen, lambda run: 1.0)
    names = {run.config.run.seed: run for run in plan.runs.values()}
    assert outcome.finished == [names[0].name, names[2].name]
    assert outcome.failed == {names[1].name: "exit code 3: oh no"}
    assert not outcome.stopped
    assert [line[:2] for line in seen.lines] == [(what, seed) for seed in range(3) for what in ("started", "ended")]
    assert (names[0].folder / LOG).read_text() == "fine\ntoo\n"
    assert seen.shares[-1] == pytest.approx(1.0)
    assert seen.shares == sorted(seen.shares)


def test_as_many_at_a_time_as_asked(plan, monkeypatch):
    scripts(monkeypatch, [["import time; time.sleep(0.3)"]] * 3)
    seen = Seen()
    carry_out(plan, 2, seen, lambda run: 1.0)
    assert [line[0] for line in seen.lines[:2]] == ["started", "started"]
    running, most = 0, 0
    for line in seen.lines:
        running += 1 if line[0] == "started" else -1
        most = max(most, running)
    assert most == 2


def test_a_signal_is_passed_on_once_and_nothing_new_begins(plan, monkeypatch, tmp_path):
    """The children get SIGTERM and end by themselves."""
    child = (
        "import signal, sys, time\n"
        "def stop(number, frame):\n"
        "    print('told', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop); print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    scripts(monkeypatch, [[child, "print('never')"]] * 3)
    logs = [run.folder / LOG for run in plan.runs.values()]

    def interrupt():
        while not all(log.exists() and "ready" in log.read_text() for log in logs[:2]):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = carry_out(plan, 2, Seen(), lambda run: 1.0)
    thread.join()
    assert outcome.stopped
    assert (outcome.finished, outcome.failed) == ([], {})
    assert [log.read_text() for log in logs[:2]] == ["ready\ntold\n"] * 2
    assert not logs[2].exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_commands_do_what_is_left(tmp_path):
    [run] = plan_of("ssl-methods", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10"]).runs.values()
    train, evaluate = commands_for(run, SMOKE.evaluation_epochs)
    assert train[1:] == ["-m", "fedssl", "run", str(run.folder / "config.toml"), "--out", str(run.folder)]
    assert evaluate[3:5] == ["evaluate", str(run.folder)]
    assert evaluate[evaluate.index("--protocol") + 1] == "linear"
    assert evaluate[evaluate.index("--epochs") + 1] == "linear=5,semi=2"
    write(run, 0.5, evaluation=[])
    assert commands_for(run, SMOKE.evaluation_epochs) == [evaluate]
    write(run, 0.5)
    assert commands_for(run, SMOKE.evaluation_epochs) == []


def test_jobs_follow_cores_threads_and_gpus(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(8)))
    assert [default_jobs(*given) for given in ((1, 0), (4, 0), (16, 0), (0, 0), (1, 3))] == [8, 2, 1, 1, 3]
