"""The client's app for Flower: unpacks a task, hands it to the one client-side path, packs the reply.

Whatever goes wrong here reaches the server as a code; text and traceback go to the client's own log.
"""

import json
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError, StorageError
from fedssl.core.files import append_line
from fedssl.federation.client import Client, attempt
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.flower.api import ClientApp, Context, Message
from fedssl.federation.engines.flower.messages import Facts, facts_of, pack_reply, record, unpack_task
from fedssl.federation.messages import ClientError, Failure, FailureCode, TrainResult


@dataclass(frozen=True)
class Side:
    """A client's side of one run, and where its failures are written down."""

    client: Client
    store: ClientStore
    log: Path
    time_limit: float | None = None


class Host:
    """The place where a client's app runs; `node` is what it was started with there, `about` what a task says beside
    the numbers: the settings, the run, the client's name, and the round."""

    def open(self, node: Facts, about: Facts) -> Side:
        """Makes (or finds) the client's side of the run that a task belongs to."""
        raise NotImplementedError

    def log(self, node: Facts) -> Path:
        """Where failures are written down, also while there is no side."""
        raise NotImplementedError

    def name(self, node: Facts) -> str:  # noqa: ARG002
        """The client's name, if it has one."""
        return ""

    def admit(self, node: Facts, about: Facts) -> None:
        """Raises if a task of this kind would be refused now."""

    def arrived(self, node: Facts, about: Facts) -> None:
        """Called with every task, before it is looked at."""

    def leaving(
        self, node: Facts, about: Facts, reply: TrainResult | Failure, *, seconds: float, side: Side | None
    ) -> None:
        """Called with every reply before it leaves, and how long it took; may refuse that a result leaves.

        `side`: of the client that made it, unless it failed before there was one.
        """


def make_client_app(host: Host) -> ClientApp:
    """An app that answers tasks, and the questions for its client's name and whether it would take a task now."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(pack_reply(_answer(message, dict(context.node_config), host)), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        node = dict(context.node_config)
        return Message(record({"name": host.name(node)} | _willing(message, node, host)), reply_to=message)

    return app


def _willing(message: Message, node: Facts, host: Host) -> Facts:
    """The code with which a task of this kind would be refused now, "" for none; nothing if that was not asked."""
    try:
        facts = facts_of(message)
        if "about" not in facts:
            return {}
        host.admit(node, facts["about"] | {"round": facts["round"]})
    except Exception as error:
        return {"code": _code(error)}
    return {"code": ""}


def _answer(message: Message, node: Facts, host: Host) -> TrainResult | Failure:
    started, facts, about, side = time.monotonic(), Facts(), Facts(), None
    try:
        facts = facts_of(message)
        order = unpack_task(message)
        about = order.about | {"round": order.task.of_round, "evaluation": order.task.evaluates}
        message.content.clear()  # its weights were copied: they are not held a second time while the client trains
        host.arrived(node, about)
        side = host.open(node, about)
        reply = attempt(side.client, side.store, order.task, time_limit=side.time_limit)
        if isinstance(reply, TrainResult):
            host.leaving(node, about, reply, seconds=time.monotonic() - started, side=side)
            return reply
        failure, log = reply, side.log
    except Exception as error:  # an app that raises would send the text to the server
        failure, log = _failure(error, facts), host.log(node)
    _write_down(log, failure)
    try:
        host.leaving(node, about, failure, seconds=time.monotonic() - started, side=side)
    except Exception as error:  # a full disk may be the very failure, and a code tells nothing
        print(f"{type(error).__name__}: {error}", flush=True)
    return failure


def _failure(error: Exception, facts: Facts) -> Failure:
    numbers = (facts.get(key) for key in ("client", "round"))
    client_id, round_number = (number if isinstance(number, int) else -1 for number in numbers)
    text, shared = f"{type(error).__name__}: {error}", error.shared if isinstance(error, ClientError) else ""
    return Failure(client_id, round_number, _code(error), detail=text, trace=traceback.format_exc(), shared=shared)


def _code(error: Exception) -> FailureCode:
    if isinstance(error, ClientError):
        return error.code
    if isinstance(error, StorageError):
        return "disk"
    return "refused" if isinstance(error, FedsslError) else "exception"


def _write_down(log: Path, failure: Failure) -> None:
    line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **vars(failure)}
    try:
        append_line(log, json.dumps(line))
    except FedsslError:  # a full disk may be the very failure
        print(json.dumps(line), flush=True)
