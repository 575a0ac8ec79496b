"""Runs a plan: every run and its evaluation in processes of their own, several at a time, stoppable."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssl.core.files import storing, write_atomically
from fedssl.experiment.progress.stopping import StopRequest
from fedssl.experiment.progress.views import View
from fedssl.paper.plan import Plan, PlannedRun, key_of_folder

LOG = "run.log"
POLL_SECONDS = 0.5
STOP_SECONDS = 60.0  # a run finishes the batch in hand and saves


@dataclass
class Outcome:
    """What became of the runs that were to be made."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # name -> the last line of its log
    stopped: int | None = None  # the signal that asked for it

    @property
    def ended(self) -> int:
        return len(self.finished) + len(self.failed)


def run_plan(plan: Plan, jobs: int, view: View, cost: Callable[[PlannedRun], float], gpus: int = 0) -> Outcome:
    """Makes the unfinished runs of a plan; a run that fails is reported and the others continue."""
    waiting, outcome, stop = plan.unfinished(), Outcome(), threading.Event()
    active: dict[Future[str | None], tuple[PlannedRun, int]] = {}  # and its slot, which says its GPU
    costs = {run.key: max(cost(run), 1e-9) for run in waiting}
    total, done, shown = sum(costs.values()), 0.0, 0.0
    view.begin("runs", total)
    with StopRequest(held_back=math.inf) as request, ThreadPoolExecutor(jobs) as pool:  # the runs end by themselves
        try:
            while (waiting and not request.signal) or active:
                while waiting and len(active) < jobs and not request.signal:
                    run, slot = waiting.pop(0), min(set(range(jobs)) - {slot for _, slot in active.values()})
                    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": str(slot % gpus)} if gpus else {})
                    _write_settings(run)
                    active[pool.submit(_make, run, plan.scale.evaluation_epochs, environment, stop)] = run, slot
                    view.say(f"begins: {run.name}")
                if request.signal:
                    stop.set()
                for future in wait(active, POLL_SECONDS, FIRST_COMPLETED).done:
                    run, _ = active.pop(future)
                    done += costs[run.key]
                    _note(run, future.result(), outcome, view, len(costs), stopped=request.signal is not None)
                reached = done + sum(costs[run.key] * _share(run) for run, _ in active.values())
                view.advance(reached - shown, f"{outcome.ended} of {len(costs)} runs, {len(active)} at work")
                shown = reached
        finally:  # an error of ours, such as a full disk, leaves no run behind
            stop.set()
    outcome.stopped = request.signal
    return outcome


def _note(run: PlannedRun, error: str | None, outcome: Outcome, view: View, runs: int, *, stopped: bool) -> None:
    """A run that was told to stop has not failed."""
    if error is None:
        outcome.finished.append(run.name)
        view.say(f"{outcome.ended}/{runs} finished: {run.name}")
    elif not stopped:
        outcome.failed[run.name] = error
        view.say(f"{outcome.ended}/{runs} failed: {run.name}: {error} ({run.folder / LOG})")


def commands_for(run: PlannedRun, epochs: dict[str, int]) -> list[list[str]]:
    """What is left to do of a run, as commands: train (or resume), then evaluate what its cells need."""
    fedssl, folder = [sys.executable, "-m", "fedssl"], str(run.folder)
    commands = []
    if not run.trained():
        commands.append([*fedssl, "run", str(run.folder / "config.toml"), "--out", folder])
    missing = run.missing_protocols(epochs) if run.trained() else run.protocols
    if missing:
        given = ",".join(f"{name}={count}" for name, count in epochs.items())
        options = ["--protocol", ",".join(missing), "--batchnorm", "running", "--epochs", given, "--no-cache"]
        commands.append([*fedssl, "evaluate", folder, *options, "--device", run.config.run.device])
    return commands


def _write_settings(run: PlannedRun) -> None:
    with storing(run.folder):
        run.folder.mkdir(parents=True, exist_ok=True)
    if not (run.folder / "config.toml").exists():
        write_atomically(run.folder / "config.toml", run.config.as_toml())


def _make(run: PlannedRun, epochs: dict[str, int], environment: dict[str, str], stop: threading.Event) -> str | None:
    """A run's commands, one after another; what went wrong. After `stop` no further command begins."""
    # The command below takes the file for what a person typed, which may name code: no other file may be there.
    if key_of_folder(run.folder) != run.key:
        return f"{run.folder / 'config.toml'}: not the settings of this run: move it away"
    for command in commands_for(run, epochs):
        if stop.is_set():
            return "not finished"
        with (run.folder / LOG).open("ab") as log:
            # In a session of its own: a Ctrl-C reaches it through us alone.
            options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        while process.poll() is None:
            if stop.wait(POLL_SECONDS):
                _end(process)
        if process.returncode:
            return f"exit code {process.returncode}: {last_line(run.folder / LOG)}"
    return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks once to save and end; what does not end in time is ended."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _share(run: PlannedRun) -> float:
    """How much of the rounds is done, by the lines of rounds.jsonl; the first is of the random encoder."""
    path = run.folder / "rounds.jsonl"
    lines = path.read_bytes().count(b"\n") - 1 if path.exists() else 0
    return min(max(lines, 0) / run.config.run.rounds, 1.0)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def default_jobs(threads: int, gpus: int) -> int:
    """As many runs side by side as there are GPUs, or cores for their threads."""
    if gpus:
        return gpus
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // threads, 1) if threads else 1
