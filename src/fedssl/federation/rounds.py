"""The server's loop: sample, send tasks, aggregate, note; one value in, one value out, round after round."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.messages import GlobalWeights, Payload, Scalars, TrainResult, TrainTask
from fedssl.federation.model_aggregation import Aggregator
from fedssl.federation.model_communication import UpdateRule
from fedssl.weights import Weights


class Engine(Protocol):
    """Carries tasks to clients and brings back their results, in any order; knows no algorithm."""

    def run_tasks(self, tasks: list[TrainTask]) -> Iterable[TrainResult]: ...


@dataclass(frozen=True)
class ServerState:
    """All that the server must remember between two rounds."""

    round_number: int
    global_weights: GlobalWeights
    accepted_round: dict[int, int] = field(default_factory=dict)
    notes: dict[int, Scalars] = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """The settings of the loop; the state is a value apart."""

    num_clients: int
    clients_per_round: int | None
    seed: int
    rule: UpdateRule
    aggregate: Aggregator
    pool: Callable[[list[Payload]], Payload]  # the method's way to join its clients' payloads


@dataclass(frozen=True)
class Round:
    """What happened in a round, for the record; the weights themselves are in `state`."""

    state: ServerState
    results: list[TrainResult]
    bytes_down: dict[int, int]
    seconds: float
    aggregation_seconds: float


def run_rounds(server: Server, engine: Engine, state: ServerState, rounds: int) -> Iterator[Round]:
    """Rounds state.round_number + 1 … `rounds`; the caller evaluates, records and saves between them."""
    while state.round_number < rounds:
        outcome = run_round(server, engine, state)
        yield outcome
        state = outcome.state


def run_round(server: Server, engine: Engine, state: ServerState) -> Round:
    started = time.perf_counter()
    round_number = state.round_number + 1
    sampled = sample_clients(server.num_clients, server.clients_per_round, server.seed, round_number)
    tasks = [make_task(server, state, client_id) for client_id in sampled]
    results = sorted(engine.run_tasks(tasks), key=lambda result: result.client_id)
    trained = time.perf_counter()
    new_state = accept(server, state, results)
    ended = time.perf_counter()
    sent = {task.client_id: task.num_bytes() for task in tasks}
    return Round(new_state, results, sent, ended - started, ended - trained)


def make_task(server: Server, state: ServerState, client_id: int) -> TrainTask:
    """A client that shares nothing gets weights only once, to start from."""
    accepted = state.accepted_round.get(client_id)
    sends = server.rule.shares or accepted is None
    return TrainTask(
        client_id,
        state.round_number + 1,
        accepted,
        state.global_weights if sends else GlobalWeights(Weights(), Weights()),
        state.notes.get(client_id, {}),
        state.payload,
    )


def accept(server: Server, state: ServerState, results: list[TrainResult]) -> ServerState:
    """Aggregates, then notes for every client of the round what its next task carries."""
    round_number = state.round_number + 1
    results = sorted(results, key=lambda result: result.client_id)  # the same bits in whatever order replies came
    accepted = state.accepted_round | {result.client_id: round_number for result in results}
    if not server.rule.shares:
        return ServerState(round_number, state.global_weights, accepted, state.notes, state.payload)
    aggregated = server.aggregate(results, state.global_weights)
    notes = dict(state.notes)
    for result in results:
        notes[result.client_id] = server.rule.note(notes.get(result.client_id, {}), result, aggregated)
    payload = server.pool([result.payload for result in results])
    return ServerState(round_number, aggregated, accepted, notes, payload)
