"""A run in numbers and words: what it prepares to do, the record of a round, and what it came to."""

import math
import statistics
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.core.errors import StorageError
from fedssl.core.files import free_bytes, size_text
from fedssl.data.dataset import Images, fingerprint
from fedssl.data.own.decoding import RESAMPLING
from fedssl.evaluation.monitor import Measured, packed, unpacked
from fedssl.evaluation.score import SUFFIXES, Best, Gain, paired_interval
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import Config
from fedssl.experiment.evaluating import encoder_weights
from fedssl.experiment.observers import Start
from fedssl.experiment.records.profile import totals_of
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.totals import mean
from fedssl.experiment.records.verdict import MEASURES, continued, verdict
from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.privacy.accounting import cautions, privacy_text
from fedssl.federation.privacy.budget import spent
from fedssl.federation.rounds import Round, ServerState
from fedssl.networks.backbones import feature_size
from fedssl.networks.heads import Encoder
from fedssl.networks.libraries import Origin, input_settings, origin_of

if TYPE_CHECKING:
    from fedssl.federation.secure.terms import Summed


@dataclass(frozen=True)
class Results:
    """What the full evaluations found; a checkpoint carries it."""

    results: dict[str, Any] = field(default_factory=dict)  # initial, final, and the gain between them
    correct: dict[str, str] = field(default_factory=dict)  # the test images that were right before training

    def add(self, round_number: int, rounds: int, measured: Measured) -> None:
        """Keeps what the first and the last round measured."""
        if round_number == 0:
            self.results["initial"] = measured.values
            for measure in MEASURES:
                if best := Best.of(measured.values, measure):
                    self.correct[measure] = packed(measured.correct[_name(measure, best)])
        elif round_number == rounds:
            self.results.update(final=measured.values, gain=self._gains(measured))

    def add_clients(self, measured: dict[int, Measured]) -> None:
        """What training changed at each client's own encoder, against the one that all began with."""
        gains = {str(client): self._gains(one) for client, one in measured.items()}
        if any(gains.values()):
            self.results["clients"] = gains

    def add_sites(self, round_number: int, rounds: int, counts: list[dict[str, int]]) -> None:
        """What the sites counted before training and at the end."""
        when = {0: "initial", rounds: "final"}.get(round_number)
        if when and counts:
            self.results.setdefault("at_sites", {})[when] = counts

    def _gains(self, measured: Measured) -> dict[str, Any]:
        """For each accuracy: image by image, what training changed; both encoders at their best."""
        gains = {}
        for measure, before in self.correct.items():
            baseline, trained = Best.of(self.results["initial"], measure), Best.of(measured.values, measure)
            if baseline and trained:
                after = measured.correct[_name(measure, trained)]
                change = after - unpacked(before, len(after))
                interval = paired_interval(float(change.sum()), float(change.square().sum()), len(after))
                gain = Gain(baseline, trained, interval)
                gains[measure] = asdict(gain) | {"interval": list(interval)}  # as JSON gives it back
        return gains


def _name(measure: str, best: Best) -> str:
    """Under which the accuracy of this mode was measured."""
    return measure + next((suffix for suffix, mode in SUFFIXES.items() if mode == best.batchnorm), "")


def round_record(config: Config, outcome: Round) -> dict[str, Any]:
    """The line of rounds.jsonl, but for what was evaluated."""
    round_number = outcome.state.round_number
    clients: list[dict[str, Any]] = []
    for result in outcome.results:
        sizes: dict[str, Any] = {"bytes_up": result.num_bytes(), "bytes_down": outcome.bytes_down[result.client_id]}
        noted = outcome.state.notes.get(result.client_id, {})  # lambda_k as it stands after this round
        own = {} if outcome.summed else {"n": result.num_examples, **noted, **result.scalars}
        clients.append({"client": result.client_id, **own, **sizes})
    failed = [{"client": f.client_id, "code": f.code, "detail": f.detail} for f in outcome.failures]
    return {
        "round": round_number,
        "lr": config.local_training.learning_rate(round_number, config.run.rounds),
        **(_summed_numbers(outcome.summed) if outcome.summed else _numbers(clients)),
        "seconds": outcome.seconds,
        "aggregation_seconds": outcome.aggregation_seconds,
        "clients": clients,
        **({"failures": failed} if failed else {}),
    }


def _numbers(clients: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all clients together."""
    images, seconds = sum(c.get("images", 0) for c in clients), sum(c["seconds"] for c in clients)
    return {
        "loss": mean([c["loss"] for c in clients if "loss" in c]),  # clients with noise of their own send none
        "mu": mean([c["mu"] for c in clients if "mu" in c]),
        "ema_share": statistics.fmean(c.get("ema", 0.0) for c in clients),
        "images_per_second": images / seconds or None if seconds else None,
    }


def _summed_numbers(summed: "Summed") -> dict[str, Any]:
    """The same, and what else a record says client by client, from a secure sum: that is all there is."""
    images, seconds = summed.sums.get("images", 0.0), summed.sums["seconds"]
    means = {name: summed.mean(name) for name in ("loss", "mu", "divergence", "feature_std")}
    return {
        **{name: value for name, value in means.items() if value is not None or name in ("loss", "mu")},
        "ema_share": summed.mean("ema"),
        "images_per_second": images / seconds or None if seconds > 0 else None,
        "n": summed.num_examples,
    }


def core_seconds(record: dict[str, Any], outcome: Round | None) -> float:
    """That clients spent on training in a round."""
    if outcome and outcome.summed:
        return outcome.summed.sums.get("core_seconds", 0.0)
    return math.fsum(client.get("core_seconds", 0.0) for client in record["clients"])


def summarise(
    config: Config, parts: Parts, folder: RunFolder, *, status: str, state: ServerState, measured: dict[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; `measured`: the accuracies, the totals over all rounds, the seconds."""
    private = spent(parts.client.privacy, parts.server, state.round_number, parts.client.terms)
    summary = {
        "status": status,
        "rounds": state.round_number,
        **measured,
        **({"privacy": private} if private else {}),
        **({"profile": totals_of(folder.path)} if config.run.profile else {}),
        "weights_sha256": encoder_weights(parts, state).digest(),
        **({"init": config.init.model_dump()} if config.init.encoder else {}),
        "data": _data(parts),
        "files": folder.seals(),
    }
    rounds = [] if "final" in summary else folder.read_rounds()  # for the newest accuracy
    record = RunRecord(path=folder.path, config=config.as_raw(), summary=summary, rounds=rounds, environment={})
    judged, kept = verdict(record), continued(record)
    return summary | {"verdict": judged.word if judged else None} | ({"continued": kept.word} if kept else {})


def _data(parts: Parts) -> dict[str, Any]:
    labelled, public = parts.dataset.labelled, parts.client.method.public
    about: dict[str, Any] = {
        "source": parts.dataset.source,
        "train_fingerprint": fingerprint(parts.dataset.train),
        "clients": parts.partition.sizes(),
        "client_names": list(parts.partition.names),
        "refused": len(parts.dataset.refused),
        "unused": parts.partition.unused,
        "labelled": len(parts.partition.labelled),
        "test": len(labelled[1]) if labelled else 0,
    }
    if public is None:
        return about
    prints = {"public_source": parts.public_source, "public_fingerprint": fingerprint(Images(public))}
    return about | {"public": len(public)} | prints


def encoder_facts(config: Config, parts: Parts, encoder: Encoder, round_number: int) -> dict[str, Any]:
    """What `load_encoder` and a curious reader need to know."""
    train, network = parts.dataset.train, config.network
    backbone = deepcopy(encoder.backbone).to("cpu")
    origin = origin_of(backbone)
    return {
        "fedssl": metadata.version("fedssl"),
        "network": {"name": network.name, **(network.model_extra or {}), **input_settings(backbone)},
        **({"library": asdict(origin)} if origin else {}),
        "channels": train.channels,
        "image_size": list(train.image_size),
        "resampling": _resampling(config, origin),
        "feature_size": feature_size(backbone, train.channels, train.image_size),
        "method": config.method.name,
        "update_rule": config.update_rule.name,
        "round": round_number,
    }


def _resampling(config: Config, origin: Origin | None) -> str:
    """How files are made ready: as in the run; where nothing was resized there, as the weights to start from say."""
    published = origin.published_input["interpolation"] if origin and config.init.encoder else ""
    return str(config.data.settings.get("resampling", published if published in RESAMPLING else "bilinear"))


def beginning(config: Config, parts: Parts, folder: Path, *, done: int | None, recorded: list[dict[str, Any]]) -> Start:
    """What observers are told before the next round."""
    title, notes, left = _title(config, parts), _notes(config, parts), steps_after(done or 0, config, parts)
    return Start(folder=folder, config=config, title=title, steps=left, notes=notes, done=done, recorded=recorded)


def _title(config: Config, parts: Parts) -> str:
    sizes, drawn = parts.partition.sizes(), config.client_sampling.clients_per_round
    held = f"{min(sizes)}–{max(sizes)} images each" if any(sizes) else "images at their own sites"
    return (
        f"{config.method.name} with {config.update_rule.name} on {config.data.name} "
        f"({parts.dataset.source}): {len(sizes)} clients ({config.partition.name}, "
        f"{held}, {drawn or 'all'} a round), {config.run.rounds} rounds of "
        f"{config.local_training.epochs} epochs on {parts.device}"
    )


def _notes(config: Config, parts: Parts) -> list[str]:
    """What a person should know before the first round."""
    promised = spent(parts.client.privacy, parts.server, config.run.rounds, parts.client.terms)
    warnings = [*parts.warnings, *(cautions(promised) if promised else [])]
    remarks = [*parts.remarks, *([privacy_text(promised)] if promised else [])]
    remarks += [parts.client.terms.text()] if parts.client.terms else []
    return [*(f"warning: {text}" for text in warnings), *(f"note: {text}" for text in remarks)]


def steps_after(done: int, config: Config, parts: Parts) -> int:
    """The training steps of all rounds after round `done`."""
    sizes = parts.partition.sizes()
    steps = [config.local_training.steps_per_epoch(size) * config.local_training.epochs for size in sizes]
    sampling = (len(sizes), config.client_sampling.clients_per_round, config.run.seed)
    return sum(steps[k] for r in range(done + 1, config.run.rounds + 1) for k in sample_clients(*sampling, r))


def disk_needed(config: Config, parts: Parts, folder: Path, *, states_here: bool) -> str:
    """In words; an error when not even one generation of states fits."""
    state, checkpoint = parts.client.state_bytes(), parts.client.first_weights.online.num_bytes()
    clients = len(parts.partition.clients) if states_here else 0
    kept = config.run.keep_checkpoints + 1
    needed, free = kept * (clients * state + checkpoint), free_bytes(folder)
    if clients * state + checkpoint > free:
        raise StorageError(
            f"{folder}: {size_text(needed)} are needed for the states of {clients} clients and "
            f"checkpoints, {size_text(free)} are free: make room, or choose another --out"
        )
    scarce = "; THIS IS MORE THAN IS FREE" if needed > free else ""
    states = f"the states of {clients} clients and the checkpoints" if clients else "the checkpoints"
    return f"{states} take up to {size_text(needed)} on disk ({size_text(free)} free){scarce}"
