"""The server's loop: sample, send tasks, aggregate, note; one value in, one value out, round after round."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from fedssl.core.errors import FedsslError, RoundError
from fedssl.core.weights import non_finite
from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.messages import Failure, GlobalWeights, Payload, Scalars, TrainResult, TrainTask
from fedssl.federation.model_aggregation.base import Aggregator, Memory
from fedssl.federation.model_communication import UpdateRule
from fedssl.federation.validation import anything, inspect, nothing
from fedssl.federation.wire import EXACT, Wire

if TYPE_CHECKING:
    from fedssl.federation.secure.server_side import SecureServer
    from fedssl.federation.secure.terms import Summed


class Engine(Protocol):
    """Carries tasks to clients and brings back their replies, in any order; knows no algorithm."""

    @property
    def workers(self) -> int:
        """How many clients are served at once."""

    @property
    def idle_seconds(self) -> float:
        """How long a worker, on average, had nothing to do while tasks were open; adds up over rounds."""

    def run_tasks(self, tasks: list[TrainTask]) -> Iterable[TrainResult | Failure]: ...


@dataclass(frozen=True)
class ServerState:
    """All that the server must remember between two rounds."""

    round_number: int
    global_weights: GlobalWeights
    _: KW_ONLY
    accepted_round: dict[int, int] = field(default_factory=dict)
    notes: dict[int, Scalars] = field(default_factory=dict)
    payload: Payload = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)  # of the aggregator


@dataclass(frozen=True, kw_only=True)
class Server:
    """The settings of the loop; the state is a value apart."""

    num_clients: int
    clients_per_round: int | None
    seed: int
    rule: UpdateRule
    aggregate: Aggregator
    pool: Callable[[list[Payload]], Payload]  # the method's way to join its clients' payloads
    min_clients: int | None = None  # fewer good replies than this fail the round; None: half of those asked
    retries: int = 1  # how often clients that gave nothing are asked again while there are too few
    wire: Wire = EXACT  # in which numbers weights travel; the server's own are exact
    payload_problem: Callable[[Payload], str] = anything  # what a method's payload may not be
    needed: tuple[str, ...] = ()  # the numbers that every reply tells
    frozen: frozenset[str] = frozenset()  # tensors of the encoder that nobody trains: they stay, whatever came back
    secure: "SecureServer | None" = None  # uploads are masked: the server learns their sum, and of no single one

    def quorum(self, sampled: int) -> int:
        if self.secure:
            return max(self.secure.threshold, self.min_clients or 0)
        return min(self.min_clients, sampled) if self.min_clients is not None else -(-sampled // 2)

    @property
    def quorum_setting(self) -> str:
        return "aggregation.secure_threshold" if self.secure else "failures.min_clients"


@dataclass(frozen=True, kw_only=True)
class Round:
    """What happened in a round, for the record; the weights themselves are in `state`."""

    state: ServerState
    results: list[TrainResult]
    failures: list[Failure]
    bytes_down: dict[int, int]
    seconds: float
    aggregation_seconds: float
    idle_seconds: float  # of a worker, on average
    workers: int  # clients served at once
    summed: "Summed | None" = None  # with secure aggregation: all that is known of the clients' numbers


def run_rounds(server: Server, engine: Engine, state: ServerState, rounds: int) -> Iterator[Round]:
    """Rounds state.round_number + 1 … `rounds`; the caller evaluates, records and saves between them."""
    while state.round_number < rounds:
        outcome = run_round(server, engine, state)
        yield outcome
        state = outcome.state


def run_round(server: Server, engine: Engine, state: ServerState) -> Round:
    started, idle_before = time.perf_counter(), engine.idle_seconds
    round_number = state.round_number + 1
    sampled = sample_clients(server.num_clients, server.clients_per_round, server.seed, round_number)
    if server.secure:
        sampled, unmet = server.secure.meet(engine, round_number, sampled)
    # Once for all tasks: an engine may see that they carry the same.
    outgoing = replace(state, global_weights=server.wire.encode(state.global_weights))
    tasks = {client_id: make_task(server, outgoing, client_id) for client_id in sampled}
    results, failures = gather(server, engine, outgoing, tasks)
    results = [replace(one, upload=server.wire.open(one.upload, state.global_weights)) for one in results]
    trained, summed = time.perf_counter(), None
    if server.secure:
        summed, results, lost = server.secure.total(engine, tasks[results[0].client_id], results)
        failures = [*unmet, *failures, *lost]
    new_state = accept(server, state, results, summed)
    ended = time.perf_counter()
    return Round(
        state=new_state,
        results=results,
        failures=failures,
        bytes_down={client_id: task.num_bytes() for client_id, task in tasks.items()},
        seconds=ended - started,
        aggregation_seconds=ended - trained,
        idle_seconds=engine.idle_seconds - idle_before,
        workers=min(engine.workers, len(tasks)),
        summed=summed,
    )


def gather(
    server: Server, engine: Engine, state: ServerState, tasks: dict[int, TrainTask]
) -> tuple[list[TrainResult], list[Failure]]:
    """Good replies by client, and all that went wrong; asks again while fewer than the quorum delivered.

    All as it travels: `state` holds the global weights that the tasks carry.
    """
    like = state.global_weights if server.rule.shares and not server.secure else GlobalWeights.EMPTY
    payload_problem = server.payload_problem if server.rule.shares else nothing
    delivered: dict[int, TrainResult] = {}
    failures: list[Failure] = []
    for _ in range(server.retries + 1):
        missing = [task for client_id, task in tasks.items() if client_id not in delivered]
        silent = {task.client_id for task in missing}
        for reply in engine.run_tasks(missing):
            reply = inspect(reply, tasks, like, payload_problem, server.needed)
            silent.discard(reply.client_id)
            if isinstance(reply, Failure):
                failures.append(reply)
            elif reply.client_id in delivered:
                text = "the first one counts"
                failures.append(Failure(reply.client_id, reply.round_number, "duplicate", detail=text))
            else:
                delivered[reply.client_id] = reply
        failures += [Failure(client_id, state.round_number + 1, "no-reply") for client_id in sorted(silent)]
        if len(delivered) >= server.quorum(len(tasks)):
            # The same bits in whatever order replies came.
            return [delivered[client_id] for client_id in sorted(delivered)], failures
    needed = f"{server.quorum(len(tasks))} are needed ({server.quorum_setting})"
    raise TooFewClientsError(state.round_number + 1, f"{len(delivered)} clients delivered, {needed}", failures)


class TooFewClientsError(RoundError):
    """Names who is missing and why; `failures` has the whole story."""

    def __init__(self, round_number: int, text: str, failures: list[Failure]) -> None:
        last = {failure.client_id: failure for failure in failures}
        missing = f"; missing: {'; '.join(str(last[client_id]) for client_id in sorted(last))}" if last else ""
        super().__init__(
            f"round {round_number}: {text}{missing}. "
            f"The run is saved after round {round_number - 1}: run the same command again to resume it"
        )
        self.failures = failures


def make_task(server: Server, state: ServerState, client_id: int) -> TrainTask:
    """A client that shares nothing gets weights only once, to start from."""
    accepted = state.accepted_round.get(client_id)
    sends = server.rule.shares or accepted is None
    return TrainTask(
        client_id=client_id,
        round_number=state.round_number + 1,
        accepted_round=accepted,
        global_weights=state.global_weights if sends else GlobalWeights.EMPTY,
        note=state.notes.get(client_id, {}),
        payload=state.payload,
    )


def accept(
    server: Server, state: ServerState, results: list[TrainResult], summed: "Summed | None" = None
) -> ServerState:
    """Aggregates, then notes for every client of the round what its next task carries; `gather` sorted the results.

    `summed`: a secure sum is one upload, the average itself, and lets nothing be noted of a client.
    """
    round_number = state.round_number + 1
    accepted = state.accepted_round | {result.client_id: round_number for result in results}
    if not server.rule.shares:
        return replace(state, round_number=round_number, accepted_round=accepted)
    uploads = [TrainResult(0, round_number, summed.weights, num_examples=summed.num_examples)] if summed else results
    aggregated, memory = _aggregated(server, state, uploads)
    notes, seen = dict(state.notes), server.wire.arrived(aggregated)  # as the clients will see it
    for result in [] if summed else results:
        notes[result.client_id] = server.rule.note(notes.get(result.client_id, {}), result, seen)
    payload = state.payload | server.pool([result.payload for result in results])
    return ServerState(round_number, aggregated, accepted_round=accepted, notes=notes, payload=payload, memory=memory)


def _aggregated(server: Server, state: ServerState, results: list[TrainResult]) -> tuple[GlobalWeights, Memory]:
    unchanged = f"the global weights stay as they were after round {state.round_number}"
    try:
        origin = server.wire.arrived(state.global_weights)
        aggregated, memory = server.aggregate.advance(results, origin, state.memory)
    except FedsslError as error:  # e.g. Krum, when clients failed and too few are left
        raise RoundError(f"round {state.round_number + 1}: {error}; {unchanged}") from None
    broken = [*non_finite(aggregated.encoder), *non_finite(aggregated.predictor)]
    if broken:
        raise RoundError(
            f"round {state.round_number + 1}: the aggregate of {broken[0]} is NaN or infinite; {unchanged} "
            "(a robust aggregation.name may help)"
        )
    return _with_frozen(aggregated, state.global_weights, server.frozen), memory


def _with_frozen(aggregated: GlobalWeights, before: GlobalWeights, frozen: frozenset[str]) -> GlobalWeights:
    """Tensors that are not trained keep their bits: no rounding of a mean, of a wire and no noise reaches them."""
    if not frozen:
        return aggregated
    trained = frozenset(before.encoder.tensors()) - frozen
    return replace(aggregated, encoder=aggregated.encoder.overlaid(before.encoder.without(trained)))
