"""Flower's SuperLink with two gates and no waiting: other machines get only what a node needs, one app alone is taken.

A SuperLink serves three interfaces on one port: for nodes, for whoever starts runs, and for the server's own apps. Only
the first asks for a registered key; through the second, anybody who reaches the port could run code at every site, and
anybody on this machine code as the server's user.
Whoever asks for what is not there yet gets an answer when it comes, not when asking again.
Started as `python -m fedssl.deployment.superlink` with the arguments of `flower-superlink`.
"""

import asyncio
import contextlib
import ipaddress
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any

from fedssl.core.memory import keep_freed_memory
from fedssl.deployment import APP, fingerprint_of
from fedssl.federation.worker_processes import die_with_the_parent

FOR_NODES = "/v1/fleet/"
BEHIND_PROXY = "--behind-proxy"  # the one argument that is not Flower's
FORWARDED = (b"x-forwarded-for", b"x-real-ip", b"forwarded", b"via")  # what a proxy adds to a request
ASK, TASKS = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
PART, PARTS = "/v1/fleet/pull-object", "/v1/runtime/push-object"  # of a task, which is announced before it comes
LARGEST = 2**24  # bytes of a node's request: uploads come in pieces of 5 MiB
HOLD = {ASK: 20.0, PART: 1.0}  # seconds that a question is kept; a node gives up on an answer after 30
A_MOMENT = 1.0  # seconds that others are kept, by the paths of their questions, or until one of these came
WOKEN_BY = {
    "/v1/runtime/get-nodes": {  # the server's app, which then looks for replies
        "/v1/fleet/push-messages",
        "/v1/fleet/activate-node",
        "/v1/fleet/deactivate-node",
        "/v1/runtime/confirm-message-received",  # it has one reply and takes the next, or the next round
    },
    "/v1/runtime/acquire-task": {"/v1/control/start-run"},  # what starts that app
}
ASGI = Callable[..., Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class NodesOnly:
    """Middleware: an address that is not this machine's gets 404 for everything but the nodes' interface.

    Flower reads a request before it asks whose it is: what is larger than any of a node's is refused unread. Behind a
    proxy nodes must come through it. One that does not say that it passes something on would look like this
    machine itself: then no node gets in, and somebody sees to it.
    """

    def __init__(self, app: ASGI, behind_proxy: bool = False) -> None:
        self.app, self.behind_proxy = app, behind_proxy

    def open_to(self, scope: dict[str, Any]) -> bool:
        if scope["path"].startswith(FOR_NODES):
            return is_forwarded(scope) or not self.behind_proxy
        return is_here(scope) and not is_forwarded(scope)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: ASGI) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not self.open_to(scope):
            await _refuse(404, scope, send)
        elif not scope["path"].startswith(FOR_NODES):
            await self.app(scope, receive, send)
        elif announced(scope) > LARGEST:
            await _refuse(413, scope, send)
        else:
            await self.app(scope, _bounded(receive), send)


async def _refuse(status: int, scope: dict[str, Any], send: ASGI) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def announced(scope: dict[str, Any]) -> int:
    """The size that a request says it has; 0 if it does not say."""
    lengths = [value for name, value in scope.get("headers", ()) if name == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0


def _bounded(receive: Receive) -> Receive:
    """The parts of a request, which breaks off where it is too large."""
    seen = 0

    async def counted() -> dict[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= LARGEST else {"type": "http.disconnect"}

    return counted


def is_here(scope: dict[str, Any]) -> bool:
    """Whether a request comes from this machine: over loopback, or from the very address that it was sent to."""
    peer, server = scope.get("client"), scope.get("server")
    try:
        return peer is not None and (ipaddress.ip_address(peer[0]).is_loopback or peer[0] == (server or [None])[0])
    except ValueError:
        return False


def is_forwarded(scope: dict[str, Any]) -> bool:
    """Whether a proxy passed a request on: then it is nobody's of this machine, whatever address it shows."""
    return any(name in FORWARDED for name, _ in scope.get("headers", ()))


class Held:
    """Middleware: a node that asks for tasks, and has none, is answered when it has one, or after HOLD seconds.

    So is one that asks for a part of its task that the server's app is still sending: were each to ask again and again,
    the time at the server would grow with the square of their number.
    Processes of this machine that ask five times a second whether there is news get their answer when there is.
    """

    def __init__(self, app: ASGI) -> None:
        self.app = app
        # By the id of a node, or of a part; nobody has said yet who they are.
        self._waiting: dict[int | str, set[asyncio.Event]] = {}
        self._news = {path: asyncio.Event() for path in WOKEN_BY}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: ASGI) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # Whole, since each of Flower's eight layers would start two tasks for every 64 KiB of an object.
        body = await _whole(receive)
        if body is None:
            return
        if scope["path"] in HOLD:
            await self._answer(scope, body, receive, send)
            return
        if news := self._news.get(scope["path"]):
            if await _first(news.wait(), receive(), A_MOMENT):
                return
            news.clear()
        await self.app(scope, _replay(body, receive), send)
        self._wake(scope["path"], body)

    def _wake(self, path: str, body: bytes) -> None:
        """Whoever waits for what this request brought."""
        for name in named_in(path, body) if path in (TASKS, PARTS) else ():
            for news in self._waiting.get(name, ()):
                news.set()
        for waiting, causes in WOKEN_BY.items():
            if path in causes:
                self._news[waiting].set()

    async def _answer(self, scope: dict[str, Any], body: bytes, receive: Receive, send: ASGI) -> None:
        path = scope["path"]
        deadline = asyncio.get_running_loop().time() + HOLD[path]
        (name,) = named_in(path, body) or {0}
        with self._awaiting(name) as news:
            while True:
                news.clear()
                answer: list[dict[str, Any]] = []
                await self.app({**scope, "state": dict(scope.get("state", {}))}, _replay(body, _never), _into(answer))
                left = deadline - asyncio.get_running_loop().time()
                if not _is_empty(path, answer) or left <= 0:
                    break
                if await _first(news.wait(), receive(), left):  # it is gone: whatever came for it waits for its return
                    return
        for part in answer:
            await send(part)

    @contextlib.contextmanager
    def _awaiting(self, name: int | str) -> Iterator[asyncio.Event]:
        """An event that is set when something came for this node, or this part; several may ask for the same."""
        news = asyncio.Event()
        self._waiting.setdefault(name, set()).add(news)
        try:
            yield news
        finally:
            self._waiting[name].discard(news)
            if not self._waiting[name]:
                del self._waiting[name]


async def _whole(receive: Receive) -> bytes | None:
    """The body of a request; None: whoever sent it was gone before its end."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replay(body: bytes, then: Receive) -> Receive:
    """A `receive` that gives this body, and what `then` gives."""
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else await then()

    return receive


async def _never() -> dict[str, Any]:
    return await asyncio.Future()


def _into(answer: list[dict[str, Any]]) -> ASGI:
    async def send(part: dict[str, Any]) -> None:
        answer.append(part)

    return send


def _is_empty(path: str, answer: list[dict[str, Any]]) -> bool:
    """Whether it is Flower's answer that there is nothing yet: no messages, or of a part only its name."""
    return answer[0]["status"] == 200 and b"".join(part.get("body", b"") for part in answer[1:]) == _nothing(path)


@cache
def _nothing(path: str) -> bytes:
    from flwr.proto.message_pb2 import PullObjectResponse

    return b"" if path == ASK else PullObjectResponse(object_found=True).SerializeToString()


async def _first(news: Awaitable[Any], gone: Awaitable[Any], seconds: float) -> bool:
    """Waits for either; whether it was the second."""
    tasks = [asyncio.ensure_future(news), asyncio.ensure_future(gone)]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    left = tasks[1].done()
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return left


def named_in(path: str, body: bytes) -> set[int] | set[str]:
    """The nodes, or the part, that a request is about; none, if it cannot be read: Flower will say so."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest

    with contextlib.suppress(import_module("google.protobuf.message").DecodeError):
        if path == ASK:
            return {PullMessagesRequest.FromString(body).node.node_id}
        if path == TASKS:
            return {one.metadata.dst_node_id for one in PushAppMessagesRequest.FromString(body).messages_list}
        return {(PullObjectRequest if path == PART else PushObjectRequest).FromString(body).object_id}
    return set()


def only(accepted: str, store: Callable[..., Any]) -> Callable[..., Any]:
    """A way to store apps that takes the one with this SHA-256; nothing is ever started that was not stored."""

    def checked(state: Any, fab: Any, *values: Any, **options: Any) -> Any:
        if sha256(fab.content).hexdigest() != accepted:
            raise ValueError("this SuperLink runs no app but that of its own fedssl")
        return store(state, fab, *values, **options)

    return checked


def main() -> None:
    die_with_the_parent(signal.SIGTERM)
    keep_freed_memory()  # every message comes in blocks of 5 MiB
    import_module("fedssl.federation.engines.flower.api")  # telemetry off, before flwr is imported
    middleware = import_module("starlette.middleware").Middleware
    extensions: Any = import_module("flwr.superlink.extensions")
    behind_proxy = BEHIND_PROXY in sys.argv
    sys.argv = [word for word in sys.argv if word != BEHIND_PROXY]
    extensions.get_middleware = lambda: (middleware(NodesOnly, behind_proxy=behind_proxy), middleware(Held))
    states: Any = import_module("flwr.server.superlink.linkstate.linkstate_factory")
    accepted = fingerprint_of(APP)
    for kind in (states.InMemoryLinkState, states.SqlLinkState):
        kind.store_app, kind.store_fab = only(accepted, kind.store_app), only(accepted, kind.store_fab)
    server: Any = import_module("uvicorn")
    run = server.run
    # A line of log for each of the many requests is worth nothing, and those that are kept do not keep the server up.
    server.run = lambda **given: run(**(given | {"access_log": False, "timeout_graceful_shutdown": 1}))
    import_module("flwr.superlink.cli").flower_superlink()


if __name__ == "__main__":
    main()
