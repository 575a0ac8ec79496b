"""What a run does, top to bottom: start or resume, then for every round train, evaluate, record, save; then close."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from fedssl.core.errors import StorageError
from fedssl.core.stopwatch import Stopwatch
from fedssl.experiment.backends import Backend, site_evaluation
from fedssl.experiment.base_encoder import first_payload
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import Config
from fedssl.experiment.evaluating import Evaluator, encoder_weights
from fedssl.experiment.observers import Observer, Shown
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.progress.loggers import Guarded, Logger
from fedssl.experiment.progress.views import View
from fedssl.experiment.records.encoder_file import save_encoder
from fedssl.experiment.records.profile import ProfileBook
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.totals import Totals
from fedssl.experiment.resume import restored
from fedssl.experiment.summary import (
    Results,
    beginning,
    core_seconds,
    disk_needed,
    encoder_facts,
    round_record,
    summarise,
)
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.messages import Failure
from fedssl.federation.privacy.budget import noise_print, with_noise_key
from fedssl.federation.rounds import Round, ServerState, TooFewClientsError, run_rounds


@dataclass(kw_only=True)
class Loop:
    """One run in its open and locked folder: `run` is all of it."""

    config: Config
    parts: Parts
    folder: RunFolder
    view: View
    loggers: Sequence[Logger]
    backend: Backend
    watching: Sequence[Observer] = ()  # of the caller

    def __post_init__(self) -> None:
        config, parts, folder, view = self.config, self.parts, self.folder, self.view
        self.store, self.clock = self.backend.store(config, parts, folder), Stopwatch(config.run.profile)
        self.checkpoints = CheckpointStore(folder.checkpoints, config.run.keep_checkpoints)
        self.evaluator = Evaluator(config=config, parts=parts, store=self.store, view=view, clock=self.clock)
        self.results, self.totals = Results(), Totals()
        loggers = Guarded(self.loggers, view.say)
        health = RunWarnings(parts.partition.title, view.say, config.update_rule.factory.mu_remedy)
        profile = ProfileBook(self.clock, folder)  # last: not of a round in which the view ends the run
        self.observers: tuple[Observer, ...] = (self.totals, loggers, health, *self.watching, Shown(view), profile)
        self.noise: dict[str, str] = {}  # by which the key of the noise is known again
        self.started = time.perf_counter()

    def run(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """From a checkpoint, or from the beginning, to the last round; returns the summary."""
        server = with_noise_key(self.parts.server, self.folder.noise_key, checkpoint)
        self.noise = noise_print(server)
        state = self._resume(checkpoint) if checkpoint else self._begin()
        server = replace(server, secure=self.backend.secure(self))
        status = ""  # until the encoder before training is recorded there is nothing to close
        try:
            with self.backend.engine(self) as engine:
                if self.config.evaluation.at_sites:
                    self.evaluator.sites = site_evaluation(self, engine, server.secure)
                if checkpoint is None:
                    self._keep(state, {"round": 0, "clients": [], **self._evaluate(state)})
                status = "interrupted"
                for outcome in run_rounds(server, engine, state, self.config.run.rounds):
                    state = outcome.state
                    measured = self._evaluate(state, outcome.failures)
                    self._record_failures(outcome.failures)
                    self._keep(state, round_record(self.config, outcome) | measured, outcome)
            status = "finished"
        except TooFewClientsError as error:
            self._record_failures(error.failures)
            raise
        except StorageError:
            status = ""  # nothing more can be written; the last checkpoint stands
            raise
        finally:  # also on Ctrl-C and errors: the finished rounds can be looked at
            if status:
                summary = self._close(status, state)
        return summary

    def _begin(self) -> ServerState:
        self._start(None, [])
        self.view.say(f"note: {disk_needed(self.config, self.parts, self.folder.path, states_here=bool(self.store))}")
        self.folder.cut_back(-1, {})  # a process that was killed here before may have left a line
        payload = first_payload(self.config, self.parts, self.folder.base_encoder)
        return ServerState(0, self.parts.client.initial_global_weights(), payload=payload)

    def _resume(self, checkpoint: Checkpoint) -> ServerState:
        self.results, recorded = restored(self.folder, checkpoint, self.config.run.rounds, self.view.say)
        self.started -= checkpoint.run["seconds"]  # in earlier processes
        self._start(checkpoint.state.round_number, recorded)
        return checkpoint.state

    def _start(self, done: int | None, recorded: list[dict[str, Any]]) -> None:
        for folder in (self.folder.checkpoints, self.folder.clients):
            folder.mkdir(exist_ok=True)
        run = beginning(self.config, self.parts, self.folder.path, done=done, recorded=recorded)
        for observer in self.observers:
            observer.start(run)

    def _evaluate(self, state: ServerState, failed: Sequence[Failure] = ()) -> dict[str, Any]:
        measured, rounds = self.evaluator.measure(state), self.config.run.rounds
        self.results.add(state.round_number, rounds, measured)
        self.results.add_clients(self.evaluator.measure_clients(state))
        evaluated = self.evaluator.measure_sites(state, failed)
        if evaluated is None:
            return measured.values
        self._record_failures([one for one in evaluated.failures if one.code != "refused"])
        record = evaluated.as_record()
        self.results.add_sites(state.round_number, rounds, record["counts"])
        return measured.values | {"at_sites": record}

    def _keep(self, state: ServerState, record: dict[str, Any], outcome: Round | None = None) -> None:
        """The record first: a checkpoint promises that its rounds are recorded, and surplus lines are cut back."""
        record["core_seconds"] = {"training": core_seconds(record, outcome), "evaluation": self.evaluator.taken()}
        with self.clock.part("state"):
            self.folder.append_round(record)
            run = {**vars(self.results), "seconds": self._seconds(), "files": self.folder.seals(), **self.noise}
            self.checkpoints.save(Checkpoint(state, run))
        for observer in self.observers:
            observer.round_finished(record, outcome)

    def _record_failures(self, failures: list[Failure]) -> None:
        now, partition = datetime.now(UTC).isoformat(timespec="seconds"), self.parts.partition
        for failure in failures:
            named = failure.named(dict(enumerate(partition.names)).get(failure.client_id, ""))
            self.folder.append_failure({**vars(named), "time": now})
            text = failure.described(partition.title(failure.client_id))
            self.view.say(f"warning: round {failure.round_number}: {text}")

    def _close(self, status: str, state: ServerState) -> dict[str, Any]:
        measured = {**self.results.results, **self.totals.values(), "seconds": self._seconds()}
        summary = summarise(self.config, self.parts, self.folder, status=status, state=state, measured=measured)
        facts = encoder_facts(self.config, self.parts, self.evaluator.encoder, state.round_number)
        save_encoder(self.folder.encoder, encoder_weights(self.parts, state), facts)
        self.folder.write_summary(summary)
        for observer in self.observers:
            observer.finish(summary)
        return summary

    def _seconds(self) -> float:
        return time.perf_counter() - self.started
