"""The encoders of a run, evaluated between its rounds."""

import statistics
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch

from fedssl.core.errors import DamagedError
from fedssl.core.stopwatch import Stopwatch
from fedssl.core.weights import Weights
from fedssl.evaluation.monitor import Measured
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import Config
from fedssl.experiment.progress.views import View
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import LATER, ClientState, Failure
from fedssl.federation.rounds import ServerState
from fedssl.federation.site_evaluation import Evaluated, SiteEvaluation

AWAY = ("no-reply", "timeout", "left", *LATER)  # codes of clients for whom nobody waits again in the same round


class Evaluator:
    """Measures the global encoder, or where nothing is shared those of all clients."""

    def __init__(
        self, *, config: Config, parts: Parts, store: ClientStore | None, view: View, clock: Stopwatch
    ) -> None:
        self.config, self.parts, self.store, self.view, self.clock = config, parts, store, view, clock
        self.encoder = deepcopy(parts.client.method.online_encoder)  # its own copy, loaded when needed
        self.sites: SiteEvaluation | None = None  # who asks them; None: settings do not
        self._core_seconds = 0.0

    def taken(self) -> float:
        """The core-seconds since the last call."""
        seconds, self._core_seconds = self._core_seconds, 0.0
        return seconds

    def measure(self, state: ServerState) -> Measured:
        """In full in the first and the last round; in between quickly, every so often, and else nothing."""
        full = state.round_number in (0, self.config.run.rounds)
        if not self._due(state.round_number):
            return Measured({})
        started = time.process_time()
        with self.clock.part("evaluation"):
            measured = self._measured(state, full)
        self._core_seconds += time.process_time() - started
        return measured

    def _due(self, number: int) -> bool:
        every = self.config.evaluation.every
        return number in (0, self.config.run.rounds) or bool(every and number % every == 0)

    def measure_sites(self, state: ServerState, failed: Sequence[Failure]) -> Evaluated | None:
        """What the sites count with their own labels; `failed`: in this round, so that nobody waits for them again.

        A client that will not, or has no labels, is named once and is no failure.
        """
        if self.sites is None or not self._due(state.round_number):
            return None
        self.view.progress("accuracy at the sites", 0, None)
        started, away = time.process_time(), {one.client_id for one in failed if one.code in AWAY}
        with self.clock.part("evaluation"):
            evaluated = self.sites.measure(state, away)
        self._core_seconds += time.process_time() - started
        for one in evaluated.failures:
            if one.code == "refused":
                text = one.described(self.parts.partition.title(one.client_id))
                self.view.say(f"note: accuracy at the sites: {text}")
        if evaluated.problem:
            self.view.say(f"warning: accuracy at the sites: {evaluated.problem}")
        return evaluated

    def _measured(self, state: ServerState, full: bool) -> Measured:
        """The global encoder's numbers; for clients that share nothing, the mean and spread over their encoders."""
        if self.parts.server.rule.shares or state.round_number == 0:
            return self._one(encoder_weights(self.parts, state), full)
        assert self.store is not None  # a rule that shares nothing is refused where states are elsewhere
        each = [self._one(one.weights.online, full) for _, one in self._client_states(self.store, state)]
        of = {name: [one.values[name] for one in each] for name in each[0].values}
        means = {name: statistics.fmean(values) for name, values in of.items()}
        spreads = {f"{name}_sd": statistics.stdev(values) for name, values in of.items() if len(each) > 1}
        correct = {name: torch.stack([one.correct[name] for one in each]).mean(dim=0) for name in each[0].correct}
        return Measured(means | spreads, correct)

    def measure_clients(self, state: ServerState) -> dict[int, Measured]:
        """Every client's own encoder after the last round, if settings ask for it and their states are here."""
        if not self.config.evaluation.clients or state.round_number != self.config.run.rounds or self.store is None:
            return {}
        started, monitor = time.process_time(), self.parts.monitor.without_probe()
        results = {}
        with self.clock.part("evaluation"):
            for client, own in self._client_states(self.store, state):
                own.weights.online.load_into(self.encoder)
                results[client] = monitor.full(self.encoder, self.view.progress)
        self._core_seconds += time.process_time() - started
        return results

    def _client_states(self, store: ClientStore, state: ServerState) -> Iterator[tuple[int, ClientState]]:
        for client, accepted in sorted(state.accepted_round.items()):
            try:
                yield client, store.load(client, accepted)
            except DamagedError:  # one that may start over has no encoder until it is asked again
                if self.config.failures.damaged_state == "error":
                    raise

    def _one(self, weights: Weights, full: bool) -> Measured:
        weights.load_into(self.encoder)
        if full:
            return self.parts.monitor.full(self.encoder, self.view.progress)
        again = not self.config.uploads.shares_statistics
        return self.parts.monitor.quick(self.encoder, reestimate=again, progress=self.view.progress)


def encoder_weights(parts: Parts, state: ServerState) -> Weights:
    """W_g, completed by the initial values of what clients keep to themselves."""
    return parts.client.first_weights.online.overlaid(state.global_weights.encoder)
