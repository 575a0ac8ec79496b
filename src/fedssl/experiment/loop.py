"""The course of one run: rounds, evaluation between them, and all that must be on disk before the next one starts."""

import statistics
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from fedssl.core.errors import DamagedError, StorageError
from fedssl.core.files import free_bytes, size_text
from fedssl.core.weights import Weights
from fedssl.data.dataset import Images, fingerprint
from fedssl.evaluation.monitor import Measured, packed, unpacked
from fedssl.evaluation.score import SUFFIXES, Best, Gain, paired_interval
from fedssl.experiment.backends import Surroundings
from fedssl.experiment.base_encoder import first_payload
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import Config
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.progress.loggers import Logger
from fedssl.experiment.progress.views import View
from fedssl.experiment.records.encoder_file import save_encoder
from fedssl.experiment.records.profile import ProfileBook, totals_of
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import SUMMARY, RunRecord, vouched
from fedssl.experiment.records.totals import Totals, mean
from fedssl.experiment.records.verdict import MEASURES, verdict
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import ClientState, Failure
from fedssl.federation.privacy.accounting import cautions, in_words
from fedssl.federation.privacy.budget import noise_print, spent, with_noise_key
from fedssl.federation.rounds import Round, ServerState, TooFewClientsError, run_rounds
from fedssl.networks.backbones import feature_size


class Running:
    """What `Experiment.run` does between opening and closing the run folder."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        folder: RunFolder,
        view: View,
        logger: Logger,
        surroundings: Surroundings,
    ) -> None:
        self.config, self.parts, self.folder, self.view, self.logger = config, parts, folder, view, logger
        self.surroundings, self.store = surroundings, surroundings.store(config, parts, folder)
        self.checkpoints = CheckpointStore(folder.checkpoints, config.run.keep_checkpoints)
        self.warnings = RunWarnings(parts.partition.title)
        self.encoder = deepcopy(parts.client.method.online_encoder)  # evaluation's own copy, loaded when needed
        self.totals = Totals()
        self.profile = ProfileBook(config.run.profile, folder)
        self.results: dict[str, Any] = {}  # the full evaluations: initial, final, and the gain between them
        self.correct: dict[str, str] = {}  # which test images the encoder got right before training, at its best
        self.noise: dict[str, str] = {}  # by which the key of the noise is known again
        self.seconds_before = 0.0  # in earlier processes
        self.evaluating = 0.0  # core-seconds, since the last record
        self.started = time.perf_counter()

    def run(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """From a checkpoint, or from the beginning, to the last round; returns the summary."""
        done = checkpoint.state.round_number if checkpoint else 0
        self.profile.start_round()
        self.view.start(self._title(), self.config.run.rounds, steps_after(done, self.config, self.parts), done)
        for warning in self.parts.warnings:
            self.view.say(f"warning: {warning}")
        promised = spent(self.parts.client.privacy, self.parts.server, self.config.run.rounds)
        for caution in cautions(promised) if promised else []:
            self.view.say(f"warning: {caution}")
        for remark in self.parts.remarks + ([in_words(promised)] if promised else []):
            self.view.say(f"note: {remark}")
        for folder in (self.folder.checkpoints, self.folder.clients):
            folder.mkdir(exist_ok=True)
        server = with_noise_key(self.parts.server, self.folder.noise_key, checkpoint)
        self.noise = noise_print(server)
        state = self._return_to(checkpoint) if checkpoint else self._begin()
        status = "interrupted"
        try:
            engine_here = self.surroundings.engine(self.config, self.parts, self.folder, self.store, self.view)
            with engine_here as engine:
                for outcome in run_rounds(server, engine, state, self.config.run.rounds):
                    state = outcome.state
                    self._after_round(outcome)
                    self.profile.end_round(outcome, engine)
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
        self.view.say(f"note: {self._disk_needed()}")
        self.folder.cut_back(-1, {})  # a process that was killed here before may have left a line
        payload = first_payload(self.config, self.parts, self.folder.base_encoder)
        state = ServerState(0, self.parts.client.initial_global_weights(), payload=payload)
        measured = self._measure(state, full=True)
        self.results["initial"] = measured.values
        for measure in MEASURES:
            if best := Best.of(measured.values, measure):
                self.correct[measure] = packed(measured.correct[_name(measure, best)])
        self._keep(state, {"round": 0, "clients": [], **self.results["initial"]})
        self.profile.end_round()
        return state

    def _return_to(self, checkpoint: Checkpoint) -> ServerState:
        course = checkpoint.course
        self.results, self.seconds_before = dict(course["results"]), course["seconds"]
        self.correct = course.get("correct", {})  # runs of older versions kept none
        seals = course.get("files", {})
        if "rounds.jsonl" in seals:  # for all else the summary vouches, if one was written since
            seals = vouched(self.folder.path) | {"rounds.jsonl": seals["rounds.jsonl"]}
        before = self.folder.reopen()
        if checkpoint.state.round_number == self.config.run.rounds:
            self._keep_evaluation(before)
        for record in self.folder.cut_back(checkpoint.state.round_number, seals):
            self.totals.add(record)
            self.warnings.check(record)  # said before
        self.view.say(f"goes on after round {checkpoint.state.round_number}")
        return checkpoint.state

    def _keep_evaluation(self, before: dict[str, Any]) -> None:
        """What `fedssl evaluate` said of these very weights, where the summary of a finished run is made again."""
        if "evaluation" in before:
            self.results["evaluation"] = before["evaluation"]
        elif not before:
            known = (self.folder.path / "evaluation.jsonl").exists()
            lost = ", without the headline of evaluation.jsonl: evaluate again to have it there" if known else ""
            self.view.say(f"warning: {self.folder.path / SUMMARY}: missing or damaged; it is made again{lost}")

    def _after_round(self, outcome: Round) -> None:
        round_number = outcome.state.round_number
        last, every = round_number == self.config.run.rounds, self.config.evaluation.every
        measured = Measured({})
        if last or (every and round_number % every == 0):
            measured = self._measure(outcome.state, full=last)
        if last:
            self.results |= {"final": measured.values, "gain": self._gains(measured)}
        self._record_failures(outcome.failures)
        self._keep(outcome.state, self._round_record(outcome) | measured.values)

    def _gains(self, measured: Measured) -> dict[str, Any]:
        """For each accuracy: image by image, what training changed; both encoders at their best."""
        gains = {}
        for measure, before in self.correct.items():
            baseline, trained = Best.of(self.results["initial"], measure), Best.of(measured.values, measure)
            if baseline and trained:
                after = measured.correct[_name(measure, trained)]
                change = after - unpacked(before, len(after))
                interval = paired_interval(float(change.sum()), float(change.square().sum()), len(after))
                gain = Gain(baseline, trained, interval, paired=True)
                gains[measure] = asdict(gain) | {"interval": list(interval)}  # as JSON gives it back
        return gains

    def _keep(self, state: ServerState, record: dict[str, Any]) -> None:
        """The record first: a checkpoint promises that its rounds are recorded, and surplus lines are cut back."""
        training = sum(client.get("core_seconds", 0.0) for client in record["clients"])
        record["core_seconds"] = {"training": training, "evaluation": self.evaluating}
        self.evaluating = 0.0
        self.totals.add(record)
        with self.profile.clock.part("state"):
            self.folder.append_round(record)
            measured = {"results": self.results, "correct": self.correct, "seconds": self._seconds()}
            course = {**measured, "files": self.folder.seals(), **self.noise}
            self.checkpoints.save(Checkpoint(state, course))
        self.logger.log_round(record)
        for warning in self.warnings.check(record):
            self.view.say(f"warning: {warning}")
        self.view.round_finished(record)  # may end the run: all is saved

    def _record_failures(self, failures: list[Failure]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for failure in failures:
            self.folder.append_failure({**vars(self._named(failure)), "time": now})
            title = self.parts.partition.title(failure.client_id)
            self.view.say(f"warning: round {failure.round_number}: {failure.told_of(title)}")

    def _named(self, failure: Failure) -> Failure:
        """With its client's name, where clients have names and nobody has said it yet."""
        names = dict(enumerate(self.parts.partition.names))
        name = names.get(failure.client_id, "")
        said = not name or failure.detail.startswith(f"{name}: ")
        return failure if said else replace(failure, detail=f"{name}: {failure.detail}".removesuffix(": "))

    def _close(self, status: str, state: ServerState) -> dict[str, Any]:
        summary = self._summary(status, state) | {"files": self.folder.seals()}
        rounds = [] if "final" in summary else self.folder.read_rounds()  # for the newest accuracy
        found = verdict(RunRecord(self.folder.path, self.config.as_raw(), summary, rounds, {}))
        summary["verdict"] = found.word if found else None
        save_encoder(self.folder.encoder, self._encoder_weights(state), self._about(state))
        self.folder.write_summary(summary)
        if "privacy" in summary:
            self.view.say(f"note: {in_words(summary['privacy'])}")
        self.logger.finish(summary)
        return summary

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _round_record(self, outcome: Round) -> dict[str, Any]:
        round_number = outcome.state.round_number
        clients: list[dict[str, Any]] = []
        for result in outcome.results:
            sizes: dict[str, Any] = {"bytes_up": result.num_bytes(), "bytes_down": outcome.bytes_down[result.client_id]}
            noted = outcome.state.notes.get(result.client_id, {})  # lambda_k as it stands after this round
            clients.append({"client": result.client_id, "n": result.num_examples, **noted, **result.scalars, **sizes})
        images, seconds = sum(c.get("images", 0) for c in clients), sum(c["seconds"] for c in clients)
        failed = [{"client": f.client_id, "code": f.code, "detail": f.detail} for f in outcome.failures]
        return {
            "round": round_number,
            "lr": self.config.local_training.learning_rate(round_number, self.config.run.rounds),
            "loss": mean([c["loss"] for c in clients if "loss" in c]),  # clients with noise of their own send none
            "mu": mean([c["mu"] for c in clients if "mu" in c]),
            "ema_share": statistics.fmean(c.get("ema", 0.0) for c in clients),
            "images_per_second": images / seconds or None if seconds else None,
            "seconds": outcome.seconds,
            "aggregation_seconds": outcome.aggregation_seconds,
            "clients": clients,
            **({"failures": failed} if failed else {}),
        }

    def _measure(self, state: ServerState, full: bool) -> Measured:
        """The global encoder's numbers, and what it cost to find them."""
        started = time.process_time()
        with self.profile.clock.part("evaluation"):
            measured = self._evaluate(state, full)
        self.evaluating += time.process_time() - started
        return measured

    def _evaluate(self, state: ServerState, full: bool) -> Measured:
        """The global encoder's numbers; for clients that share nothing, the mean and spread over their encoders."""
        if self.parts.server.rule.shares or state.round_number == 0:
            return self._evaluate_one(self._encoder_weights(state), full)
        assert self.store is not None  # a rule that shares nothing is refused where states are elsewhere
        each = [self._evaluate_one(one.weights.online, full) for one in self._client_states(self.store, state)]
        of = {name: [one.values[name] for one in each] for name in each[0].values}
        means = {name: statistics.fmean(values) for name, values in of.items()}
        spreads = {f"{name}_sd": statistics.stdev(values) for name, values in of.items() if len(each) > 1}
        correct = {name: torch.stack([one.correct[name] for one in each]).mean(dim=0) for name in each[0].correct}
        return Measured(means | spreads, correct)

    def _client_states(self, store: ClientStore, state: ServerState) -> Iterator[ClientState]:
        for client, accepted in sorted(state.accepted_round.items()):
            try:
                yield store.load(client, accepted)
            except DamagedError:  # one that may start over has no encoder until it is asked again
                if self.config.failures.damaged_state == "error":
                    raise

    def _evaluate_one(self, weights: Weights, full: bool) -> Measured:
        weights.load_into(self.encoder)
        foreign = self.config.uploads.batchnorm != "average"  # the global model then has no statistics of its own
        if full:
            return self.parts.monitor.full(self.encoder, self.view.evaluating)
        return self.parts.monitor.quick(self.encoder, reestimate=foreign, watch=self.view.evaluating)

    def _encoder_weights(self, state: ServerState) -> Weights:
        """W_g, completed by the initial values of what clients keep to themselves."""
        return self.parts.client.first_weights.online.overlaid(state.global_weights.encoder)

    def _summary(self, status: str, state: ServerState) -> dict[str, Any]:
        labelled = self.parts.dataset.labelled
        private = spent(self.parts.client.privacy, self.parts.server, state.round_number)
        return {
            "status": status,
            "rounds": state.round_number,
            **self.results,
            **self.totals.values(),
            **({"privacy": private} if private else {}),
            "seconds": self._seconds(),
            **({"profile": totals_of(self.folder.path)} if self.config.run.profile else {}),
            "weights_sha256": self._encoder_weights(state).digest(),
            **({"init": self.config.init.model_dump()} if self.config.init.encoder else {}),
            "data": {
                "source": self.parts.dataset.source,
                "train_fingerprint": fingerprint(self.parts.dataset.train),
                "clients": self.parts.partition.sizes(),
                "client_names": list(self.parts.partition.names),
                "refused": len(self.parts.dataset.refused),
                "unused": self.parts.partition.unused,
                "labelled": len(self.parts.partition.labelled),
                "test": len(labelled[1]) if labelled else 0,
                **self._public(),
            },
        }

    def _public(self) -> dict[str, Any]:
        images = self.parts.client.method.public
        if images is None:
            return {}
        return {
            "public": len(images),
            "public_source": self.parts.public_source,
            "public_fingerprint": fingerprint(Images(images)),
        }

    def _about(self, state: ServerState) -> dict[str, Any]:
        """What `load_encoder` and a curious reader need to know."""
        train, network = self.parts.dataset.train, self.config.network
        backbone = deepcopy(self.encoder.backbone).to("cpu")
        return {
            "fedssl": metadata.version("fedssl"),
            "network": {"name": network.name, **(network.model_extra or {})},
            "channels": train.channels,
            "image_size": list(train.image_size),
            "feature_size": feature_size(backbone, train.channels, train.image_size),
            "method": self.config.method.name,
            "update_rule": self.config.update_rule.name,
            "round": state.round_number,
        }

    def _title(self) -> str:
        config, sizes = self.config, self.parts.partition.sizes()
        drawn = config.client_sampling.clients_per_round
        held = f"{min(sizes)}–{max(sizes)} images each" if any(sizes) else "images at their own sites"
        return (
            f"{config.method.name} with {config.update_rule.name} on {config.data.name} "
            f"({self.parts.dataset.source}): {len(sizes)} clients ({config.partition.name}, "
            f"{held}, {drawn or 'all'} a round), {config.run.rounds} rounds of "
            f"{config.local_training.epochs} epochs on {self.parts.device}"
        )

    def _disk_needed(self) -> str:
        """In words; an error when not even one generation of states fits."""
        client = self.parts.client
        state, checkpoint = client.state_bytes(), client.first_weights.online.num_bytes()
        clients = len(self.parts.partition.clients) if self.store else 0
        kept = self.config.run.keep_checkpoints + 1
        needed, free = kept * (clients * state + checkpoint), free_bytes(self.folder.path)
        if clients * state + checkpoint > free:
            raise StorageError(
                f"{self.folder.path}: {size_text(needed)} are needed for the states of {clients} clients and "
                f"checkpoints, {size_text(free)} are free: make room, or choose another --out"
            )
        scarce = "; THIS IS MORE THAN IS FREE" if needed > free else ""
        states = f"the states of {clients} clients and the checkpoints" if clients else "the checkpoints"
        return f"{states} take up to {size_text(needed)} on disk ({size_text(free)} free){scarce}"


def _name(measure: str, best: Best) -> str:
    """Under which the accuracy of this mode was measured."""
    return measure + next(suffix for suffix, mode in SUFFIXES.items() if mode == best.batchnorm)


def steps_after(done: int, config: Config, parts: Parts) -> int:
    """The training steps of all rounds after round `done`."""
    sizes = parts.partition.sizes()
    steps = [config.local_training.steps_per_epoch(size) * config.local_training.epochs for size in sizes]
    sampling = (len(sizes), config.client_sampling.clients_per_round, config.run.seed)
    return sum(steps[k] for r in range(done + 1, config.run.rounds + 1) for k in sample_clients(*sampling, r))
