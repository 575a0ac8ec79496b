"""Accuracy at the sites: each gets the global encoder, looks at it with its own labelled images, and sends counts.

It travels as a stage, as secure sums do: `engine.run_tasks` carries the question and a client answers it instead of
training. Where uploads are summed securely the counts are, too: the server learns how many of all test images.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedssl.core.files import remove_folder
from fedssl.core.sealed import rounds_in, seal
from fedssl.core.weights import Weights
from fedssl.federation.client_store import UPLOAD, ClientStore
from fedssl.federation.messages import EVALUATE, ClientError, Failure, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.rounds import Engine, ServerState, TooFewClientsError
from fedssl.federation.validation import inspect
from fedssl.federation.wire import EXACT, Wire

if TYPE_CHECKING:
    from fedssl.federation.client import Client
    from fedssl.federation.secure.server_side import SecureServer
    from fedssl.federation.secure.terms import Terms

MEASURES = ("knn", "linear")
FOLDER = "evaluation"  # beside the clients' states: what a client keeps until its counts are summed


@dataclass(frozen=True)
class Counts:
    """Of n labelled test images so many were classified correctly, by each measure."""

    n: int
    correct: dict[str, int]
    client: int | None = None  # None: the sum over several
    clients: int = 1

    def as_record(self) -> dict[str, int]:
        owner = {"clients": self.clients} if self.client is None else {"client": self.client}
        return {**owner, "n": self.n, **self.correct}


# --- a client's side


def answer(client: "Client", store: ClientStore, task: TrainTask) -> TrainResult:
    """Counts, or a stage of their secure sum; a site without labels refuses, as does one that will not tell."""
    if client.examine is None:
        raise ClientError("refused", "accuracy at the sites: this client takes no part in it")
    stage, sums = task.stage.removeprefix(EVALUATE), ClientStore(store.folder / FOLDER, secure=store.secure)
    if stage and sums.secure is None:
        raise ClientError("refused", "a stage of a secure sum in a run without secure aggregation")
    if stage and sums.secure is not None:
        return sums.secure.answer(sums, replace(task, stage=stage))
    if client.terms is None:
        counts = client.examine(task.client_id, client.global_encoder(task))
        reported = {name: counts.correct[name] for name in MEASURES}
        where = (task.client_id, task.round_number)
        return TrainResult(*where, GlobalWeights.EMPTY, num_examples=counts.n, scalars=dict(reported))
    if sums.find(task, "") is None:
        _keep(client, sums, task)
    # The sum will say the rest.
    return TrainResult(task.client_id, task.round_number, GlobalWeights.EMPTY, num_examples=1)


def _keep(client: "Client", sums: ClientStore, task: TrainTask) -> None:
    """Seals the counts as a part of the secure sum, and forgets those of earlier rounds."""
    from fedssl.federation.secure.fixed_point import encode
    from fedssl.federation.secure.terms import packed

    assert client.examine is not None
    assert client.terms is not None
    counts = client.examine(task.client_id, client.global_encoder(task))
    layout = count_terms(client.terms, client.num_clients).layout
    vector = encode(layout, Weights(), Weights(), counts.n, {name: counts.correct[name] for name in MEASURES})
    path, tensors = sums.path(task.client_id, task.round_number), packed(vector).named()
    facts = {"client": task.client_id, "data": None, "round": task.round_number, "task": task.digest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    seal(
        path,
        {UPLOAD + name: tensor for name, tensor in tensors.items()},
        facts | {"common": common(client.terms, task)},
    )
    for number in rounds_in(path.parent):
        if number != task.round_number:
            remove_folder(sums.path(task.client_id, number))


def common(terms: "Terms", task: TrainTask) -> str:
    """A digest of what all clients of a sum look at."""
    return hashlib.sha256(f"evaluation {task.global_weights.digest} {terms.settings}".encode()).hexdigest()


def count_terms(terms: "Terms", num_clients: int) -> "Terms":
    """Of a sum of counts over up to `num_clients`: whole numbers, and no fewer clients than training asks for."""
    from fedssl.federation.secure.fixed_point import LARGEST, layout_of

    most = LARGEST // num_clients
    layout = layout_of(Weights(), num_clients, most, 1.0, 1.0, dict.fromkeys(MEASURES))
    return replace(terms, layout=layout, numbers=MEASURES, equal=False)


# --- the server's side


@dataclass(frozen=True)
class Evaluated:
    """What the sites said, what went wrong with whom, why there is no sum, and the bytes that travelled."""

    counts: list[Counts]
    failures: list[Failure]
    _: KW_ONLY
    problem: str = ""
    bytes_down: int = 0
    bytes_up: int = 0

    def as_record(self) -> dict[str, Any]:
        counts = [one.as_record() for one in self.counts]
        return {"counts": counts, "bytes_down": self.bytes_down, "bytes_up": self.bytes_up}


@dataclass(kw_only=True, eq=False)
class SiteEvaluation:
    """Asks all clients through an engine; one that refused is not asked again by this process."""

    engine: Engine
    num_clients: int
    wire: Wire = EXACT
    secure: "SecureServer | None" = None  # of sums of counts
    _refused: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.least = self.secure.threshold if self.secure else 1  # a site is in no smaller sum than when it trains

    def measure(self, state: ServerState, away: Collection[int] = ()) -> Evaluated:
        """Of the global encoder of this state; nobody waits for those who are `away`, and no failure ends a run."""
        weights = self.wire.encode(GlobalWeights(state.global_weights.encoder, Weights()))
        sampled = [k for k in range(self.num_clients) if k not in self._refused and k not in away]
        tasks = {k: self._task(k, state.round_number + 1, weights) for k in sampled}
        results, failures = self._gather(tasks)
        self._refused |= {one.client_id for one in failures if one.code == "refused"}
        evaluated = (
            self._summed(self.secure, tasks, results)
            if self.secure
            else Evaluated([Counts(one.num_examples, _whole(one.scalars), one.client_id) for one in results], [])
        )
        return replace(
            evaluated,
            failures=[*failures, *evaluated.failures],
            bytes_down=sum(task.num_bytes() for task in tasks.values()),
            bytes_up=sum(one.num_bytes() for one in results),
        )

    def _task(self, client_id: int, round_number: int, weights: GlobalWeights) -> TrainTask:
        """Numbered as the round that begins with these weights."""
        return TrainTask(client_id, round_number, global_weights=weights, stage=EVALUATE, room=0)

    def _gather(self, tasks: dict[int, TrainTask]) -> tuple[list[TrainResult], list[Failure]]:
        results: dict[int, TrainResult] = {}
        failures = []
        for reply in self.engine.run_tasks(list(tasks.values())) if tasks else ():
            reply = inspect(reply, tasks, GlobalWeights.EMPTY, counts=() if self.secure else MEASURES)
            if isinstance(reply, Failure):
                failures.append(reply)
            elif reply.client_id not in results:
                results[reply.client_id] = reply
        return [results[k] for k in sorted(results)], failures

    def _summed(self, secure: "SecureServer", tasks: dict[int, TrainTask], results: Sequence[TrainResult]) -> Evaluated:
        """One entry, the sum over all that looked; none where too few are left for a sum."""
        from fedssl.federation.secure.stages import usual_threshold

        clients = [one.client_id for one in results]
        needed = max(self.least, usual_threshold(len(clients)))
        if len(clients) < needed:
            return Evaluated([], [], problem=f"{len(clients)} clients have counts, a secure sum of them needs {needed}")
        secure.terms = replace(secure.terms, threshold=needed)
        try:
            ready, lost = secure.meet(self.engine, results[0].round_number, clients)
            outcome = secure.total(self.engine, tasks[ready[0]], [one for one in results if one.client_id in ready])
        except TooFewClientsError as error:
            return Evaluated([], error.failures, problem=str(error).partition(". The run is saved")[0])
        correct, n = _whole(outcome.summed.sums), outcome.summed.num_examples
        if any(not 0 <= count <= n for count in correct.values()):
            return Evaluated([], outcome.failures, problem=f"{correct} of {n} test images: a client sent rubbish")
        return Evaluated([Counts(n, correct, clients=len(outcome.results))], [*lost, *outcome.failures])


def _whole(numbers: dict[str, float]) -> dict[str, int]:
    return {name: round(numbers[name]) for name in MEASURES}
