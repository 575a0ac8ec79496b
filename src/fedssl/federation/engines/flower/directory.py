"""Where the clients of a grid are right now: by number in a simulation, by key or by name in a deployment."""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.progress import Say
from fedssl.federation.engines.flower.api import Message
from fedssl.federation.engines.flower.messages import WHO, facts_of, record
from fedssl.federation.validation import MOST_NAME

MOST_STRANGERS = 100  # of whom it is said that they are none of ours


class Node(Protocol):
    """What is used of Flower's node record."""

    node_id: int
    last_activated_at: str
    public_key: bytes


class Grid(Protocol):
    """What is used of Flower's grid."""

    def get_nodes(self) -> Iterable[Node]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Seat:
    """A node as it came up: one that was killed and started again has the same id and another time."""

    node: int
    since: str


class Directory(Protocol):
    """Where clients are right now."""

    def look(self) -> None:
        """Looks around anew: who came, who went."""

    def seat_of(self, client_id: int) -> Seat | None:
        """The node to send its task to, as last seen; None while it is away."""

    def name_of(self, client_id: int) -> str: ...


@dataclass
class Numbered:
    """In simulation every node can play every client: the states lie on the one disk."""

    grid: Grid
    clients: int
    _seats: list[Seat] = field(default_factory=list)

    def look(self) -> None:
        if len(self._seats) < self.clients:  # simulated nodes stay as they are
            self._seats = sorted((_seat(node) for node in self.grid.get_nodes()), key=lambda seat: seat.node)

    def seat_of(self, client_id: int) -> Seat | None:
        return self._seats[client_id % len(self._seats)] if self._seats else None

    def name_of(self, client_id: int) -> str:  # noqa: ARG002
        return ""


class _Named:
    """Who sits where, by the clients' names."""

    names: list[str]
    _seats: dict[str, Seat]

    def seat_of(self, client_id: int) -> Seat | None:
        return self._seats.get(self.names[client_id])

    def name_of(self, client_id: int) -> str:
        return self.names[client_id]


@dataclass(kw_only=True)
class ByKey(_Named):
    """In a deployment with registered keys a node is who its key says it is; node ids mean nothing."""

    grid: Grid
    names: list[str]
    keys: dict[bytes, str]  # a client's name by its public key
    say: Say
    _seats: dict[str, Seat] = field(default_factory=dict)

    def look(self) -> None:
        registered = [node for node in self.grid.get_nodes() if node.public_key in self.keys]
        seats = {self.keys[node.public_key]: _seat(node) for node in registered}
        _report_changes(self._seats, seats, self.say)
        self._seats = seats


@dataclass(kw_only=True)
class ByName(_Named):
    """Without keys a node is asked for its client's name when it comes, and believed."""

    grid: Grid
    names: list[str]
    say: Say
    answer_limit: float = 120.0  # seconds for an app to start and say its name
    _names: dict[Seat, str] = field(default_factory=dict)  # of the nodes that answered
    _questions: dict[str, tuple[Seat, float]] = field(default_factory=dict)  # message -> whom, when
    _seats: dict[str, Seat] = field(default_factory=dict)
    _strangers: set[str] = field(default_factory=set)

    def look(self) -> None:
        online = {_seat(node) for node in self.grid.get_nodes()}
        self._names = {seat: name for seat, name in self._names.items() if seat in online}
        self._ask_names(online - self._names.keys())
        self._listen()
        seats = {name: seat for seat, name in sorted(self._names.items(), key=lambda one: one[0].since)}
        _report_changes(self._seats, seats, self.say)
        self._seats = seats

    def _ask_names(self, unknown: set[Seat]) -> None:
        now = time.monotonic()
        self._questions = {one: at for one, at in self._questions.items() if now - at[1] < self.answer_limit}
        questioned = {seat for seat, _ in self._questions.values()}
        for seat in sorted(unknown - questioned, key=lambda seat: seat.node):
            question = Message(record({}), dst_node_id=seat.node, message_type=WHO, ttl=self.answer_limit)
            self._questions |= {one: (seat, now) for one in self.grid.push_messages([question]) if one}

    def _listen(self) -> None:
        for message_id, (seat, _) in list(self._questions.items()):
            with contextlib.suppress(UnreadableError):  # it is asked again when its time is over
                for answer in pulled(self.grid, message_id):
                    self._questions.pop(message_id, None)
                    if not answer.has_error():
                        self._note(seat, answer)

    def _note(self, seat: Seat, answer: Message) -> None:
        with contextlib.suppress(FedsslError):
            name = safe_text(str(facts_of(answer).get("name", ""))[:MOST_NAME])
            if name in self.names:
                self._names[seat] = name
            elif name not in self._strangers and len(self._strangers) < MOST_STRANGERS:
                self._strangers.add(name)
                self.say(f"warning: a node calls itself '{name}', which is not in flower.clients: it gets no tasks")


class UnreadableError(FedsslError):
    """A node sent what Flower itself cannot unpack."""


def pulled(grid: Grid, message_id: str) -> list[Message]:
    """The answer to a message, if there is one."""
    try:
        return list(grid.pull_messages([message_id]))
    except Exception as error:
        grid.get_nodes()  # raises if it is the SuperLink that is gone
        raise UnreadableError(f"a message that Flower cannot unpack ({type(error).__name__})") from None


def _seat(node: Node) -> Seat:
    return Seat(node.node_id, node.last_activated_at)


def _report_changes(before: dict[str, Seat], now: dict[str, Seat], say: Say) -> None:
    for name in sorted(now.keys() | before.keys()):
        if name not in now:
            say(f"warning: {name} is away")
        elif before.get(name) != now[name]:
            say(f"{name} is here")
