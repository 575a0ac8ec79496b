"""The server's part in secure sums: the exchange of keys, and a sum stage by stage, through any engine.

What it must remember is public and small: the run's id, the number of the last attempt, and for which sites a round was
opened. Those sites open that round for no other set, so a round that is repeated asks for the same.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssl.core.errors import FedsslError, RoundError, StorageError, safe_text
from fedssl.core.files import write_atomically
from fedssl.core.weights import Weights
from fedssl.federation.messages import Failure, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.rounds import Engine, TooFewClientsError
from fedssl.federation.secure.coordinator import Coordinator
from fedssl.federation.secure.keys import Roster, verify
from fedssl.federation.secure.member import REMEMBERED
from fedssl.federation.secure.stages import (
    Agreement,
    KeyAdvert,
    KeyCall,
    MaskedUpload,
    Peers,
    RoundCall,
    RoundShares,
    Session,
    Unmasking,
    from_stage,
    to_stage,
)
from fedssl.federation.secure.terms import VECTOR, Summed, Terms, unpacked
from fedssl.federation.validation import inspect


class Outcome(NamedTuple):
    """A secure sum: what it says, whose vectors are in it, and what went wrong on the way."""

    summed: Summed
    results: list[TrainResult]  # of the survivors, with their masked uploads
    failures: list[Failure]


@dataclass(kw_only=True, eq=False)
class SecureServer:
    """Knows the clients by name, whom it asks through an engine, and the terms of their sums."""

    terms: Terms
    names: Sequence[str]  # by client
    roster: Roster
    file: Path  # what it must remember
    common: Callable[[TrainTask], str]  # a digest of what all clients of a round train
    retries: int = 1
    run: str = ""  # the id of the run; "": a new one, or that of the file
    prefix: bytes = b""  # of every stage: which of a client's sums it is about
    _adverts: dict[str, KeyAdvert] = field(default_factory=dict)
    _informed: dict[str, set[str]] = field(default_factory=dict)  # of whose keys each was told

    def __post_init__(self) -> None:
        known = json.loads(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        self.run = self.run or known.get("run") or uuid.uuid4().hex
        self.attempt = int(known.get("attempt", 0))
        self.opened: dict[str, list[str]] = known.get("opened", {})  # the sites of a round, by its number
        if not known:
            self._write()  # before a site hears of the run: its keys are of this one for ever

    @property
    def threshold(self) -> int:
        return self.terms.threshold

    def meet(self, engine: Engine, round_number: int, clients: Sequence[int]) -> tuple[list[int], list[Failure]]:
        """Exchanges keys, once a run and when somebody is new; returns who can take part, and what went wrong."""
        ask, names = _Asking(self, engine, round_number), [self.names[k] for k in clients]
        ask({name: KeyCall(self.run) for name in names if name not in self._adverts}, self._take(KeyAdvert, self._know))
        met = [name for name in names if name in self._adverts]
        peers = Peers(tuple(self._adverts.values())) if met else None
        new = [name for name in met if not self._informed.get(name, set()) >= set(met)]
        ask(dict.fromkeys(new, peers), lambda name, _: self._informed.update({name: set(self._adverts)}))
        ready = [k for k in clients if self._informed.get(self.names[k], set()) >= set(met) and self.names[k] in met]
        if len(ready) < self.threshold:
            text = f"{len(ready)} clients exchanged keys, {self.threshold} are needed (aggregation.secure_threshold)"
            raise TooFewClientsError(round_number, text, ask.failures)
        return ready, ask.failures

    def total(self, engine: Engine, task: TrainTask, results: Sequence[TrainResult]) -> Outcome:
        """The sum over the clients that trained, stage by stage; who is missing at one is not asked at the next.

        `task` is that of any of them: they differ in whose they are.
        """
        round_number, trained = results[0].round_number, {self.names[one.client_id]: one for one in results}
        ask = _Asking(self, engine, round_number)
        try:
            sites = self._sites(round_number, trained)
            call = RoundCall(self._new_session(round_number), sites, self.threshold, self.common(task))
            sum_, uploads = Coordinator(self.roster, call, self.terms.layout.length), dict[str, TrainResult]()
            # 1. Each shares the secrets of its masks among all.
            ask(dict.fromkeys(call.names, call), self._take(RoundShares, sum_.take_shares, lambda one: one.key.name))
            # 2. Each gets the others' shares and sends its vector, masked.
            ask(sum_.deliveries(), partial(self._add, sum_, uploads), self.terms.num_bytes)
            # 3. Those who did sign who is left.
            left = sum_.survivor_call()
            ask(dict.fromkeys(left.survivors, left), self._take(Agreement, sum_.take_agreement))
            # 4. They give the shares that take the masks off the sum.
            last = sum_.unmask_call()
            self._remember_opened(round_number, left.survivors)
            ask(dict.fromkeys(last.agreements, last), self._take(Unmasking, sum_.take_unmasking))
            summed = self.terms.read(sum_.total(), task.global_weights)
        except RoundError as error:
            raise TooFewClientsError(
                round_number, str(error).removeprefix(f"round {round_number}, "), ask.failures
            ) from None
        survivors = [replace(trained[name], upload=uploads[name].upload) for name in left.survivors]
        return Outcome(summed, sorted(survivors, key=lambda one: one.client_id), ask.failures)

    def _know(self, advert: KeyAdvert) -> None:
        """Sites check each other's keys themselves; here it is said early whose file is another."""
        verify(self.roster, advert.name, advert.signature, advert.statement())
        self._adverts[advert.name] = advert

    def _take(
        self, kind: type[Any], take: Callable[[Any], None], name_of: Callable[[Any], str] = lambda one: one.name
    ) -> "Take":
        """Reads an answer of this kind, which must be about the site that was asked."""

        def taken(name: str, reply: TrainResult) -> None:
            message = from_stage(reply.stage, kind)
            if name_of(message) != name:
                raise FedsslError(f"site {name}: answered as {safe_text(name_of(message))}")
            take(message)

        return taken

    def _add(self, sum_: Coordinator, uploads: dict[str, TrainResult], name: str, reply: TrainResult) -> None:
        """Adds a masked vector to the sum as soon as it is here."""
        sum_.take_upload(MaskedUpload(from_stage(reply.stage, Session), name, unpacked(reply.weights).tobytes()))
        uploads[name] = reply

    def _sites(self, round_number: int, trained: Mapping[str, TrainResult]) -> tuple[str, ...]:
        """All that trained, or of a round that was opened before and is repeated, those of then."""
        before = self.opened.get(str(round_number), sorted(trained))
        missing = [name for name in before if name not in trained]
        if missing:
            raise RoundError(
                f"was opened for {', '.join(before)} before the server was stopped, and can be "
                f"repeated with the same sites only: {', '.join(missing)} must come back"
            )
        return tuple(before)

    def _new_session(self, round_number: int) -> Session:
        self.attempt += 1
        self._write()
        return Session(self.run, round_number, self.attempt)

    def _remember_opened(self, round_number: int, survivors: Iterable[str]) -> None:
        """Before anybody is asked to open it: whatever becomes of the answers, those sites will not do so twice."""
        self.opened = {k: v for k, v in self.opened.items() if int(k) > round_number - REMEMBERED}
        self.opened[str(round_number)] = sorted(survivors)
        self._write()

    def _write(self) -> None:
        content = {"run": self.run, "attempt": self.attempt, "opened": self.opened}
        write_atomically(self.file, json.dumps(content) + "\n")


Take = Callable[[str, TrainResult], None]


class _Asking:
    """Puts a stage to clients through an engine; what is wrong with an answer is its sender's failure alone."""

    def __init__(self, server: SecureServer, engine: Engine, round_number: int) -> None:
        self.names, self.retries, self.engine, self.round_number = server.names, server.retries, engine, round_number
        self.prefix = server.prefix
        self.failures: list[Failure] = []

    def __call__(self, said: Mapping[str, object], take: Take, room: int = 0) -> None:
        """`said` to each site by name, `take` with every good answer; who gives none is asked again."""
        numbers = {name: number for number, name in enumerate(self.names)}
        waiting = {numbers[name]: self._task(numbers[name], message, room) for name, message in said.items()}
        for _ in range(self.retries + 1):
            tasks, silent = dict(waiting), set(waiting)
            for reply in self.engine.run_tasks(list(tasks.values())) if tasks else ():
                silent.discard(reply.client_id)
                problem = self._problem(inspect(reply, tasks, _like(room)), waiting, take)
                self.failures += [problem] if problem else []
            self.failures += [Failure(k, self.round_number, "no-reply") for k in sorted(silent)]

    def _task(self, client_id: int, message: object, room: int) -> TrainTask:
        stage = self.prefix + to_stage(message)
        return TrainTask(client_id, self.round_number, global_weights=GlobalWeights.EMPTY, stage=stage, room=room)

    def _problem(self, reply: TrainResult | Failure, waiting: dict[int, TrainTask], take: Take) -> Failure | None:
        if isinstance(reply, Failure):
            return reply
        client_id, round_number = reply.client_id, reply.round_number
        if client_id not in waiting:
            return Failure(client_id, round_number, "duplicate", detail="the first one counts")
        try:
            take(self.names[client_id], reply)
        except (RoundError, StorageError):
            raise
        except FedsslError as error:
            return Failure(client_id, round_number, "rejected", detail=safe_text(str(error)))
        del waiting[client_id]
        return None


def _like(room: int) -> GlobalWeights:
    """What the weights in an answer must be like; takes no memory."""
    if not room:
        return GlobalWeights.EMPTY
    return GlobalWeights(Weights({VECTOR: torch.zeros(1, dtype=torch.int32).expand(room // 4)}), Weights())
