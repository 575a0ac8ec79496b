"""Runs in processes of their own: several at a time, failures named, Ctrl-C passed on; then all of it for real."""

import os
import signal
import sys
import threading
import time

import pytest

from fedssl.core.errors import StorageError
from fedssl.experiment.progress.views import QuietView
from fedssl.paper import runner as module
from fedssl.paper.runner import LOG, commands_for, default_jobs, run_plan
from tests.helpers.paper_runs import SMOKE, plan_of, write


class Seen(QuietView):
    """A view that remembers."""

    def __init__(self):
        self.lines, self.texts, self.pieces, self.parts = [], [], 0.0, []

    def say(self, text):
        self.lines.append(text)

    def begin(self, text, pieces):
        self.pieces = pieces

    def advance(self, by=1, text=""):
        self.parts.append(by)
        self.texts.append(text)


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
    outcome = run_plan(plan, 1, seen, lambda run: 1.0)
    names = {run.config.run.seed: run for run in plan.runs.values()}
    assert outcome.finished == [names[0].name, names[2].name]
    assert outcome.failed == {names[1].name: "exit code 3: oh no"}
    assert outcome.stopped is None
    assert seen.lines == [
        f"begins: {names[0].name}",
        f"1/3 finished: {names[0].name}",
        f"begins: {names[1].name}",
        f"2/3 failed: {names[1].name}: exit code 3: oh no ({names[1].folder}/run.log)",
        f"begins: {names[2].name}",
        f"3/3 finished: {names[2].name}",
    ]
    assert (seen.texts[0], seen.texts[-1]) == ("0 of 3 runs, 1 at work", "3 of 3 runs, 0 at work")
    assert (names[0].folder / LOG).read_text() == "fine\ntoo\n"
    assert sum(seen.parts) == pytest.approx(seen.pieces) == 3
    assert min(seen.parts) >= 0


def test_as_many_at_a_time_as_asked(plan, monkeypatch):
    scripts(monkeypatch, [["import time; time.sleep(0.3)"]] * 3)
    seen = Seen()
    run_plan(plan, 2, seen, lambda run: 1.0)
    assert [line.split(":")[0] for line in seen.lines[:2]] == ["begins", "begins"]
    running, most = 0, 0
    for line in seen.lines:
        running += 1 if line.startswith("begins") else -1
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
    outcome = run_plan(plan, 2, Seen(), lambda run: 1.0)
    thread.join()
    assert outcome.stopped == signal.SIGINT
    assert (outcome.finished, outcome.failed) == ([], {})
    assert [log.read_text() for log in logs[:2]] == ["ready\ntold\n"] * 2
    assert not logs[2].exists()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def processes(plan, monkeypatch):
    """Those that were started, each of which would take a minute."""
    scripts(monkeypatch, [["import time; time.sleep(60)"]] * 3)
    started, real = [], module.subprocess.Popen
    monkeypatch.setattr(
        module.subprocess, "Popen", lambda *given, **options: started.append(real(*given, **options)) or started[-1]
    )
    return started


def test_an_error_of_ours_leaves_no_run_behind(plan, processes):
    """Here of the view, while a run is at work: it is told to stop before the error is passed on."""

    class Breaks(Seen):
        def advance(self, by=1, text=""):
            if processes:
                raise StorageError("no room")

    with pytest.raises(StorageError, match="no room"):
        run_plan(plan, 1, Breaks(), lambda run: 1.0)
    assert [process.poll() for process in processes] == [-signal.SIGTERM]


def test_a_folder_that_cannot_be_made_leaves_no_run_behind(plan, processes):
    list(plan.runs.values())[1].folder.parent.mkdir(parents=True)
    list(plan.runs.values())[1].folder.write_text("a file")
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        run_plan(plan, 2, Seen(), lambda run: 1.0)
    assert all(process.poll() == -signal.SIGTERM for process in processes)


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
