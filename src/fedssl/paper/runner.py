"""Carrying out a plan: every run and its evaluation in processes of their own, several at a time, stoppable."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

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


def carry_out(plan: Plan, jobs: int, view: View, cost: Callable[[PlannedRun], float], gpus: int = 0) -> Outcome:
    """Makes the unfinished runs of a plan; a run that fails is reported and the others go on."""
    waiting, active, outcome = plan.unfinished(), list[_Job](), Outcome()
    costs = {run.key: max(cost(run), 1e-9) for run in waiting}
    total, done, shown = sum(costs.values()), 0.0, 0.0
    view.begin("runs", total)
    with StopRequest(held_back=math.inf) as request:  # children are told, nothing is torn
        try:
            while (waiting and not request.signal) or active:
                while waiting and len(active) < jobs and not request.signal:
                    slot = min(set(range(jobs)) - {job.slot for job in active})
                    active.append(_Job(waiting.pop(0), plan.scale.evaluation_epochs, slot, gpus))
                    view.say(f"begins: {active[-1].run.name}")
                for job in active if request.signal else ():
                    job.stop()
                for job in [job for job in active if job.ended()]:
                    active.remove(job)
                    done += costs[job.run.key]
                    _note(job, outcome, view, len(costs), stopped=request.signal is not None)
                reached = done + sum(costs[job.run.key] * job.share() for job in active)
                view.advance(reached - shown, f"{outcome.ended} of {len(costs)} runs, {len(active)} at work")
                shown = reached
                if active:
                    time.sleep(POLL_SECONDS)
        finally:  # an error of ours, such as a full disk, leaves no run behind
            _stop_all(active)
    outcome.stopped = request.signal
    return outcome


def _note(job: "_Job", outcome: Outcome, view: View, runs: int, *, stopped: bool) -> None:
    """A run that was told to stop has not failed."""
    if job.error is None and not job.commands:
        outcome.finished.append(job.run.name)
        view.say(f"{outcome.ended}/{runs} finished: {job.run.name}")
    elif not stopped:
        outcome.failed[job.run.name] = job.error or "not finished"
        view.say(f"{outcome.ended}/{runs} failed: {job.run.name}: {job.error} ({job.run.folder / LOG})")


def _stop_all(active: list["_Job"]) -> None:
    while any(not job.ended() for job in active):
        for job in active:
            job.stop()
        time.sleep(POLL_SECONDS)


def commands_for(run: PlannedRun, epochs: dict[str, int]) -> list[list[str]]:
    """What is left to do of a run, as commands: train (or go on), then evaluate what its cells need."""
    fedssl, folder = [sys.executable, "-m", "fedssl"], str(run.folder)
    commands = []
    if not run.trained():
        commands.append([*fedssl, "run", str(run.folder / "config.toml"), "--out", folder])
    missing = run.missing_protocols(epochs) if run.trained() else run.protocols
    if missing:
        asked = ",".join(f"{name}={count}" for name, count in epochs.items())
        options = ["--protocol", ",".join(missing), "--batchnorm", "running", "--epochs", asked, "--no-cache"]
        commands.append([*fedssl, "evaluate", folder, *options, "--device", run.config.run.device])
    return commands


class _Job:
    """One run's commands, one after another, in a session of their own: a Ctrl-C reaches them through us alone."""

    def __init__(self, run: PlannedRun, epochs: dict[str, int], slot: int, gpus: int) -> None:
        self.run, self.slot = run, slot
        with storing(run.folder):
            run.folder.mkdir(parents=True, exist_ok=True)
        if not (run.folder / "config.toml").exists():
            write_atomically(run.folder / "config.toml", run.config.as_toml())
        # The command below takes the file for what a person typed, which may name code: no other file may be there.
        known = key_of_folder(run.folder) == run.key
        self.error = None if known else f"{run.folder / 'config.toml'}: not the settings of this run: move it away"
        self.commands = commands_for(run, epochs) if known else []
        self.environment = os.environ | ({"CUDA_VISIBLE_DEVICES": str(slot % gpus)} if gpus else {})
        self.told, self.stopping = 0.0, False
        self.process: subprocess.Popen[bytes] | None = None
        self._next()

    def _next(self) -> None:
        self.process = None
        if self.commands and not self.stopping:
            with (self.run.folder / LOG).open("ab") as log:
                self.process = _start(self.commands.pop(0), log, self.environment)

    def ended(self) -> bool:
        """True when the last command has ended, or one has failed."""
        if self.process is None:
            return True
        code = self.process.poll()
        if code is None:
            return False
        if code != 0:
            self.error = f"exit code {code}: {last_line(self.run.folder / LOG)}"
            return True
        self._next()
        return self.process is None

    def stop(self) -> None:
        """Asks once to save and end; what does not end in time is ended, and no further command begins."""
        self.stopping = True
        if self.process is None or self.process.poll() is not None:
            return
        if not self.told:
            self.told = time.monotonic()
            self.process.terminate()
        elif time.monotonic() - self.told > STOP_SECONDS:
            self.process.kill()

    def share(self) -> float:
        """How much of the rounds is done, by the lines of rounds.jsonl; the first is of the random encoder."""
        path = self.run.folder / "rounds.jsonl"
        lines = path.read_bytes().count(b"\n") - 1 if path.exists() else 0
        return min(max(lines, 0) / self.run.config.run.rounds, 1.0)


def _start(command: Sequence[str], log: IO[bytes], environment: dict[str, Any]) -> "subprocess.Popen[bytes]":
    options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def default_jobs(threads: int, gpus: int) -> int:
    """As many runs side by side as there are GPUs, or cores for their threads."""
    if gpus:
        return gpus
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // threads, 1) if threads else 1
