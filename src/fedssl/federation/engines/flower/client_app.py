"""The client's app for Flower: unpacks a task, hands it to the one client-side path, packs the reply.

Whatever goes wrong here reaches the server as a code; text and traceback go to the client's own log.
"""

import json
import traceback
from collections.abc import Callable
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


OpenSide = Callable[[Facts, Facts], Side]
"""Makes (or finds) a client's side, given what its node was started with and what the task says beside the numbers."""


def make_client_app(open_side: OpenSide, name_of: Callable[[Facts], str], log_of: Callable[[Facts], Path]) -> ClientApp:
    """An app that answers tasks, and the question for its client's name; `log_of` is used before there is a side."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = dict(context.node_config)
        return Message(pack_reply(_answer(message, node, open_side, log_of)), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(record({"name": name_of(dict(context.node_config))}), reply_to=message)

    return app


def _answer(
    message: Message, node: Facts, open_side: OpenSide, log_of: Callable[[Facts], Path]
) -> TrainResult | Failure:
    facts: Facts = {}
    try:
        facts = facts_of(message)
        order = unpack_task(message)
        message.content.clear()  # its weights were copied: they are not held a second time while the client trains
        side = open_side(node, order.about)
        reply = attempt(side.client, side.store, order.task, time_limit=side.time_limit)
        if isinstance(reply, TrainResult):
            return reply
        failure, log = reply, side.log
    except Exception as error:  # an app that raises would send the text to the server
        numbers = (facts.get(key) for key in ("client", "round"))
        client_id, round_number = (number if isinstance(number, int) else -1 for number in numbers)
        text, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        failure, log = Failure(client_id, round_number, _code(error), text, trace), log_of(node)
    _write_down(log, failure)
    return failure


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
