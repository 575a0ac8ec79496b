"""An experiment: config → parts → rounds → evaluation → run folder."""

import statistics
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedssl import __version__
from fedssl.build import Parts, build
from fedssl.config import Config
from fedssl.data.images import fingerprint
from fedssl.engines.in_process import InProcessEngine
from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.client_store import ClientStore
from fedssl.federation.rounds import Round, ServerState, run_rounds
from fedssl.networks.backbones import feature_size
from fedssl.presets import load_config
from fedssl.reports.encoder_file import save_encoder
from fedssl.reports.environment import describe_environment
from fedssl.reports.loggers import Guarded, Logger
from fedssl.reports.progress import QuietView, View
from fedssl.reports.run_folder import RunFolder
from fedssl.reports.warnings import RunWarnings
from fedssl.weights import Weights


@dataclass(frozen=True)
class RunReport:
    """What a run came to: `summary` is the content of summary.json."""

    folder: Path
    summary: dict[str, Any]


class Experiment:
    """One run, described by its config."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def run(self, folder: str | Path, view: View | None = None, loggers: Sequence[Logger] = ()) -> RunReport:
        """Trains, evaluates and writes the run folder. Ctrl-C keeps what the finished rounds gave."""
        if self.config.run.threads:
            torch.set_num_threads(self.config.run.threads)
        with view or QuietView() as shown:
            parts = build(self.config, shown.preparing)
            run_folder = RunFolder.create(Path(folder))
            run_folder.write_config(self.config.as_toml())
            run_folder.write_environment(describe_environment(parts.device))
            parts.partition.save(run_folder.partition, self.config.partition.name, self.config.partition.settings)
            run_folder.write_refused([asdict(one) for one in parts.dataset.refused])
            guarded = Guarded(loggers, shown.say)
            guarded.start(run_folder.path, self.config.as_raw())
            return _Running(self.config, parts, run_folder, shown, guarded).run()


def load(name: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """load("cifar10-noniid+fedu", {"rounds": 50}): an experiment from a preset or TOML file with settings on top."""
    return Experiment(load_config(name, overrides))


class _Running:
    """The course of one run: what `Experiment.run` does between opening and closing the run folder."""

    def __init__(self, config: Config, parts: Parts, folder: RunFolder, view: View, logger: Logger) -> None:
        self.config, self.parts, self.folder, self.view, self.logger = config, parts, folder, view, logger
        self.store = ClientStore(folder.clients)
        self.warnings = RunWarnings()
        self.encoder = deepcopy(parts.client.method.online_encoder)  # evaluation's own copy, loaded when needed
        self.records: list[dict[str, Any]] = []
        self.started = time.perf_counter()

    def run(self) -> RunReport:
        config, parts = self.config, self.parts
        self.view.start(self._title(), config.run.rounds, self._total_steps())
        for remark in parts.remarks:
            self.view.say(f"note: {remark}")
        state = ServerState(0, parts.client.initial_global_weights())
        results: dict[str, Any] = {"initial": self._evaluate(state, full=True)}
        self._record({"round": 0, "clients": [], **results["initial"]})
        engine = InProcessEngine(parts.client, self.store, self.view.step)
        status = "interrupted"
        try:
            for outcome in run_rounds(parts.server, engine, state, config.run.rounds):
                self._after_round(outcome, results)
                state = outcome.state
            status = "finished"
        finally:  # also on Ctrl-C and errors: the finished rounds are not lost
            summary = self._summary(status, state, results)
            save_encoder(self.folder.encoder, self._encoder_weights(state), self._about(state))
            self.folder.write_summary(summary)
            self.logger.finish(summary)
        return RunReport(self.folder.path, summary)

    def _after_round(self, outcome: Round, results: dict[str, Any]) -> None:
        round_number = outcome.state.round_number
        last, every = round_number == self.config.run.rounds, self.config.evaluation.every
        measured = {}
        if last or (every and round_number % every == 0):
            measured = self._evaluate(outcome.state, full=last)
        if last:
            results["final"] = measured
        self._record(self._round_record(outcome) | measured)

    def _record(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.folder.append_round(record)
        self.logger.log_round(record)
        self.view.round_finished(record)
        for warning in self.warnings.check(record):
            self.view.say(f"warning: {warning}")

    def _round_record(self, outcome: Round) -> dict[str, Any]:
        round_number = outcome.state.round_number
        clients: list[dict[str, Any]] = []
        for result in outcome.results:
            sizes: dict[str, Any] = {"bytes_up": result.num_bytes(), "bytes_down": outcome.bytes_down[result.client_id]}
            noted = outcome.state.notes.get(result.client_id, {})  # lambda_k as it stands after this round
            clients.append({"client": result.client_id, "n": result.num_examples, **noted, **result.scalars, **sizes})
        images, seconds = sum(c["images"] for c in clients), sum(c["seconds"] for c in clients)
        return {
            "round": round_number,
            "lr": self.config.local_training.learning_rate(round_number, self.config.run.rounds),
            "loss": statistics.fmean(c["loss"] for c in clients),
            "mu": _mean(c.get("mu") for c in clients),
            "ema_share": statistics.fmean(c.get("ema", 0.0) for c in clients),
            "images_per_second": images / seconds,
            "seconds": outcome.seconds,
            "aggregation_seconds": outcome.aggregation_seconds,
            "clients": clients,
        }

    def _evaluate(self, state: ServerState, full: bool) -> dict[str, float]:
        """The global encoder's numbers; for clients that share nothing, the mean and spread over their encoders."""
        if self.parts.server.rule.shares or state.round_number == 0:
            return self._evaluate_one(self._encoder_weights(state), full)
        each = [
            self._evaluate_one(self.store.load(client, accepted).weights.online, full)
            for client, accepted in sorted(state.accepted_round.items())
        ]
        means = {name: statistics.fmean(one[name] for one in each) for name in each[0]}
        return means | {f"{name}_sd": statistics.stdev(one[name] for one in each) for name in means if len(each) > 1}

    def _evaluate_one(self, weights: Weights, full: bool) -> dict[str, float]:
        weights.load_into(self.encoder)
        foreign = self.config.aggregation.batchnorm != "average"  # the global model then has no statistics of its own
        if full:
            return self.parts.monitor.full(self.encoder)
        return self.parts.monitor.quick(self.encoder, reestimate=foreign)

    def _encoder_weights(self, state: ServerState) -> Weights:
        """W_g, completed by the initial values of what clients keep to themselves."""
        return self.parts.client.first_weights.online.overlaid(state.global_weights.encoder)

    def _summary(self, status: str, state: ServerState, results: dict[str, Any]) -> dict[str, Any]:
        trained = [record for record in self.records if record["clients"]]
        mus = [client["mu"] for record in trained for client in record["clients"] if "mu" in client]
        return {
            "status": status,
            "rounds": state.round_number,
            **results,
            "mean_mu": _mean(mus),
            "ema_share": _mean(record["ema_share"] for record in trained),
            "final_loss": trained[-1]["loss"] if trained else None,
            "seconds": time.perf_counter() - self.started,
            "bytes_up": sum(client["bytes_up"] for record in trained for client in record["clients"]),
            "bytes_down": sum(client["bytes_down"] for record in trained for client in record["clients"]),
            "weights_sha256": self._encoder_weights(state).digest(),
            "data": {
                "source": self.parts.dataset.source,
                "train_fingerprint": fingerprint(self.parts.dataset.train),
                "clients": self.parts.partition.sizes(),
                "client_names": list(self.parts.partition.names),
                "refused": len(self.parts.dataset.refused),
                "unused": self.parts.partition.unused,
                "labelled": len(self.parts.partition.labelled),
            },
        }

    def _about(self, state: ServerState) -> dict[str, Any]:
        """What `load_encoder` and a curious reader need to know."""
        train, network = self.parts.dataset.train, self.config.network
        backbone = deepcopy(self.encoder.backbone).to("cpu")
        return {
            "fedssl": __version__,
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
        return (
            f"{config.method.name} with {config.update_rule.name} on {config.data.name} "
            f"({self.parts.dataset.source}): {len(sizes)} clients ({config.partition.name}, "
            f"{min(sizes)}–{max(sizes)} images each, {drawn or 'all'} a round), {config.run.rounds} rounds of "
            f"{config.local_training.epochs} epochs on {self.parts.device}"
        )

    def _total_steps(self) -> int:
        config, sizes = self.config, self.parts.partition.sizes()
        steps = [config.local_training.steps_per_epoch(size) * config.local_training.epochs for size in sizes]
        sampling = (len(sizes), config.client_sampling.clients_per_round, config.run.seed)
        return sum(steps[k] for r in range(1, config.run.rounds + 1) for k in sample_clients(*sampling, r))


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
