"""Clients behind a Flower grid, simulated or at their own sites: tasks are packed, sent, awaited and unpacked here.

What is lost on the way (a node that dies, a reply that expires) is sent again while there is time: a client that has
trained a task before answers from its own disk, so asking twice costs a message and changes nothing. A site that will
not take a task yet is asked again and again whether it would, by a question without weights.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Self

from fedssl.core.errors import FedsslError, StorageError, reason, safe_text
from fedssl.core.files import UNFINISHED
from fedssl.core.progress import Say
from fedssl.federation.engines.flower.api import ArrayRecord, ErrorCode, Message
from fedssl.federation.engines.flower.directory import Directory, Grid, Seat, UnreadableError, pulled
from fedssl.federation.engines.flower.messages import (
    TRAIN,
    WHO,
    Facts,
    code_in,
    facts_of,
    pack_question,
    pack_task,
    pack_tensors,
    unpack_reply,
)
from fedssl.federation.messages import LATER, Failure, FailureCode, TrainResult, TrainTask

UPLOADS = "uploads"

MOST_ERRORS = 3


GRACE = 60.0  # seconds beyond a client's own limit for its app to start and its reply to travel
ASK_AGAIN = 15.0  # seconds between two questions to a site that is not ready
TOGETHER = 100  # messages of one push
A_DAY = 86_400.0  # seconds where nobody said how long: no wait is without an end
QUESTION_FIRST: tuple[FailureCode, ...] = (*LATER, "left")  # who answered so is asked before weights are sent again
NOT_YET = {"approval": "approve the run", "closed": "open: it is outside its hours"}


@dataclass
class _Pending:
    """A task on its way."""

    task: TrainTask
    since: float  # when its client was first asked, or last seen
    _: KW_ONLY
    message: str | None = None
    seat: Seat | None = None
    limit: float = float("inf")  # on the clock
    errors: int = 0  # of Flower's, not counting that its node was away
    question: bool = False  # what is on its way is whether the client would take it
    not_before: float = 0.0  # when it is asked again


@dataclass(kw_only=True, eq=False)
class FlowerEngine:
    """Implements `Engine` over a grid; uploads wait on disk, so memory does not grow with the number of clients."""

    grid: Grid
    directory: Directory
    folder: Path
    about: Callable[[int], Facts]
    waiting: Say  # said again and again while somebody is awaited; may raise to stop
    patience: float
    presence: Callable[[dict[int, str]], None] = lambda _: None  # told with it: what each client does
    clients: int = 0  # of the run, also those without a task
    time_limit: float | None = None
    pause: float = 0.1  # seconds between two looks for replies, at most
    approval_patience: float = A_DAY  # seconds for a person at a site, or until its hours
    workers: int = 1_000_000  # clients that train at the same time; at their own sites: all

    def __post_init__(self) -> None:
        self.idle_seconds = 0.0
        self._kept: list[tuple[int, Path]] = []
        self._hesitant: dict[int, tuple[FailureCode, float]] = {}  # what clients said that took no task, since when

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._forget_before(float("inf"))
        with contextlib.suppress(OSError):  # not there, or not ours alone
            (self.folder / UPLOADS).rmdir()

    def run_tasks(self, tasks: list[TrainTask]) -> Iterator[TrainResult | Failure]:
        buffers = _Buffers()
        begun, worked = time.monotonic(), 0.0
        pending = {task.client_id: _Pending(task, begun) for task in tasks}
        self._forget_before(max(task.round_number for task in tasks))
        while pending:
            self.directory.look()
            for reply in self._advance(pending, buffers):
                del pending[reply.client_id]
                worked += reply.scalars.get("seconds", 0.0) if isinstance(reply, TrainResult) else 0.0
                yield reply
            if pending:
                self.presence(self._doing(pending, {task.client_id for task in tasks}))
                self._wait(list(pending.values()), time.monotonic() - begun)
        self.idle_seconds += max(time.monotonic() - begun - worked / min(self.workers, len(tasks)), 0.0)

    def _advance(self, pending: dict[int, _Pending], buffers: "_Buffers") -> Iterator[TrainResult | Failure]:
        """One step of every task's way: answered, sent, given up; whoever takes a reply takes it out of `pending`."""
        yield from filter(None, map(self._listen, list(pending.values())))
        self._send_all(list(pending.values()), buffers)
        yield from filter(None, map(self._given_up, list(pending.values())))

    def _listen(self, one: _Pending) -> TrainResult | Failure | None:
        """What became of a task that is on its way, if anything."""
        seat = self.directory.seat_of(one.task.client_id)
        if one.message is not None:
            try:
                for message in pulled(self.grid, one.message):
                    if not message.has_error():
                        one.message = None
                        return self._answered(one, message) if one.question else self._received(one, message)
                    one.message = None  # expired, or its node is gone, or Flower failed: our app never answers so
                    one.errors += message.error.code != ErrorCode.NODE_UNAVAILABLE
                    if one.errors >= MOST_ERRORS:
                        return self._failure(one, "refused", f"Flower's error {message.error.code}, {one.errors} times")
            except UnreadableError as error:
                one.message, one.errors = None, one.errors + 1
                if one.errors >= MOST_ERRORS:
                    return self._failure(one, "rejected", f"{error}, {one.errors} times")
            if seat is not None and seat != one.seat:
                one.message = None  # its node was killed and is back: what it was doing is lost
        return None

    def _given_up(self, one: _Pending) -> Failure | None:
        """A failure, if it took too long."""
        now, seat = time.monotonic(), self.directory.seat_of(one.task.client_id)
        if (one.message is not None or now < one.not_before) and seat is not None:
            one.since = now
        if now - one.since > self.patience:
            return self._failure(one, "no-reply", f"away for {now - one.since:.0f} s")
        if now > one.limit:
            return self._failure(one, "timeout", f"no answer after {self.time_limit or 0:g} s")
        return None

    def _send_all(self, pending: list[_Pending], buffers: "_Buffers") -> None:
        """Sends what can be sent, many at a time: their weights stay at the SuperLink until the last one has them."""
        now, ready = time.monotonic(), []
        for one in pending:
            seat = self.directory.seat_of(one.task.client_id)
            if one.message is None and seat is not None and now >= one.not_before:
                ready.append((one, seat))
        for begin in range(0, len(ready), TOGETHER):
            some = ready[begin : begin + TOGETHER]
            messages = [self._packed(one, seat, buffers) for one, seat in some]
            for (one, seat), sent in zip(some, self.grid.push_messages(messages), strict=False):
                if sent:
                    one.message, one.seat = sent, seat
                    if self.time_limit is not None and not one.question and one.limit == float("inf"):
                        one.limit = time.monotonic() + self.time_limit + GRACE

    def _packed(self, one: _Pending, seat: Seat, buffers: "_Buffers") -> Message:
        about, one.question = self.about(one.task.client_id), one.task.client_id in self._hesitant
        content = pack_question(one.task, about) if one.question else pack_task(one.task, buffers.of(one.task), about)
        limit = GRACE if one.question else self.time_limit
        return Message(
            content,
            dst_node_id=seat.node,
            message_type=WHO if one.question else TRAIN,
            group_id=str(one.task.round_number),
            ttl=None if limit is None else limit + 2 * GRACE,
        )

    def _answered(self, one: _Pending, message: Message) -> Failure | None:
        """What a client says to the question whether it would take its task now."""
        try:
            facts = facts_of(message)
            code = code_in(facts) if facts.get("code") else None
        except FedsslError as error:
            return self._failure(one, "rejected", reason(error))
        if code is None:
            del self._hesitant[one.task.client_id]  # the task itself is next
            return None
        return self._not_taken(one, code, "")

    def _not_taken(self, one: _Pending, code: FailureCode, detail: str) -> Failure | None:
        """A failure, or None when the client may take it later: then it is asked again, for so long as is allowed."""
        now = time.monotonic()
        _, since = self._hesitant.pop(one.task.client_id, (code, now))
        if code in QUESTION_FIRST:
            self._hesitant[one.task.client_id] = (code, since)
        if code in LATER and now - since < self.approval_patience:
            one.limit, one.not_before = float("inf"), now + ASK_AGAIN
            return None
        return self._failure(one, code, detail or "its own log says more")

    def _received(self, one: _Pending, message: Message) -> TrainResult | Failure | None:
        """Where a reply enters: whatever is wrong with it is its sender's failure, and nobody else's."""
        keep = self.folder / UPLOADS / f"client-{one.task.client_id:05d}{UNFINISHED}"
        keep.parent.mkdir(mode=0o700, exist_ok=True)  # one client's weights are for nobody else on this machine
        try:
            reply = unpack_reply(message, keep, one.task.answer_bytes)
        except StorageError:
            raise
        except Exception as error:
            return self._failure(one, "rejected", reason(error))
        if one.seat is None or message.metadata.src_node_id != one.seat.node:
            return self._failure(one, "rejected", "another node answered")
        if reply.client_id != one.task.client_id:  # whoever it says it is, we know whom we asked
            return self._failure(one, "rejected", f"it answered as client {reply.client_id}")
        self._kept.append((one.task.round_number, keep))
        return self._not_taken(one, reply.code, reply.detail) if isinstance(reply, Failure) else reply

    def _failure(self, one: _Pending, code: FailureCode, detail: str) -> Failure:
        name = self.directory.name_of(one.task.client_id)
        text = safe_text(f"{name}: {detail}" if name else detail)
        return Failure(one.task.client_id, one.task.round_number, code, detail=text)

    def _doing(self, pending: dict[int, _Pending], sampled: set[int]) -> dict[int, str]:
        """Of every client; one that has delivered is done, wherever it is now."""
        doing = {}
        for client in range(self.clients):
            here = "away" if self.directory.seat_of(client) is None else "here"
            at_work = "working" if here == "here" else "away"
            doing[client] = at_work if client in pending else "done" if client in sampled else here
        return doing

    def _wait(self, pending: list[_Pending], seconds: float) -> None:
        doing = "answer" if any(one.task.stage for one in pending) else "train"
        groups: dict[str, list[str]] = {"away": [], doing: [], **{text: [] for text in NOT_YET.values()}}
        for one in pending:
            code, _ = self._hesitant.get(one.task.client_id, ("", 0.0))
            groups[NOT_YET.get(code, doing if one.message else "away")].append(self._title(one))
        away = groups.pop("away")
        parts = [f"for {_listed(titles)} to {what}" for what, titles in groups.items() if titles]
        parts += [f"for {_listed(away)} to come (up to {self.patience:g} s)"] if away else []
        self.waiting(f"waiting {' and '.join(parts)}: {seconds:.0f} s")
        time.sleep(min(self.pause, 0.05 + seconds / 50))  # short rounds are not made longer, long ones not asked often

    def _title(self, one: _Pending) -> str:
        return self.directory.name_of(one.task.client_id) or f"client {one.task.client_id}"

    def _forget_before(self, round_number: float) -> None:
        """Uploads are needed until their round is averaged, also while some of its clients are asked again."""
        for _, path in [one for one in self._kept if one[0] < round_number]:
            path.unlink(missing_ok=True)
        self._kept = [one for one in self._kept if one[0] >= round_number]


class _Buffers:
    """The packed tensors of each set of weights that the tasks carry: one, as a rule."""

    def __init__(self) -> None:
        self._packed: dict[int, tuple[TrainTask, ArrayRecord]] = {}

    def of(self, task: TrainTask) -> ArrayRecord:
        key = id(task.global_weights)
        if key not in self._packed:
            self._packed[key] = (task, pack_tensors(task.global_weights, task.payload))
        return self._packed[key][1]


def _listed(titles: list[str]) -> str:
    return ", ".join(titles[:5]) + (f" and {len(titles) - 5} more" if len(titles) > 5 else "")
