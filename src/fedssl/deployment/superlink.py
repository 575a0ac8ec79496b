"""Flower's SuperLink with two gates: other machines get only what a client's node needs, and one app alone is taken.

A SuperLink serves three interfaces on one port: for nodes, for whoever starts runs, and for the server's own apps. Only
the first asks for a registered key; through the second, anybody who reaches the port could run code at every site, and
anybody on this machine code as the server's user.
Started as `python -m fedssl.deployment.superlink` with the arguments of `flower-superlink`.
"""

import ipaddress
import signal
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from importlib import import_module
from typing import Any

from fedssl.deployment import APP, fingerprint_of
from fedssl.federation.worker_processes import die_with_the_parent

FOR_NODES = "/v1/fleet/"
BEHIND_PROXY = "--behind-proxy"  # the one argument that is not Flower's
FORWARDED = (b"x-forwarded-for", b"x-real-ip", b"forwarded", b"via")  # what a proxy adds to a request
ASGI = Callable[..., Awaitable[None]]


class NodesOnly:
    """Middleware: an address that is not this machine's gets 404 for everything but the nodes' interface.

    Behind a proxy nodes must come through it. One that does not say that it passes something on would look like this
    machine itself: then no node gets in, and somebody sees to it.
    """

    def __init__(self, app: ASGI, behind_proxy: bool = False) -> None:
        self.app, self.behind_proxy = app, behind_proxy

    def open_to(self, scope: dict[str, Any]) -> bool:
        if scope["path"].startswith(FOR_NODES):
            return is_forwarded(scope) or not self.behind_proxy
        return is_here(scope) and not is_forwarded(scope)

    async def __call__(self, scope: dict[str, Any], receive: ASGI, send: ASGI) -> None:
        if scope["type"] == "lifespan" or self.open_to(scope):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


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


def only(accepted: str, store: Callable[..., Any]) -> Callable[..., Any]:
    """A way to store apps that takes the one with this SHA-256; nothing is ever started that was not stored."""

    def checked(state: Any, fab: Any, *values: Any, **options: Any) -> Any:
        if sha256(fab.content).hexdigest() != accepted:
            raise ValueError("this SuperLink runs no app but that of its own fedssl")
        return store(state, fab, *values, **options)

    return checked


def main() -> None:
    die_with_the_parent(signal.SIGTERM)
    import_module("fedssl.federation.engines.flower.api")  # telemetry off, before flwr is imported
    middleware = import_module("starlette.middleware").Middleware
    extensions: Any = import_module("flwr.superlink.extensions")
    behind_proxy = BEHIND_PROXY in sys.argv
    sys.argv = [word for word in sys.argv if word != BEHIND_PROXY]
    extensions.get_middleware = lambda: (middleware(NodesOnly, behind_proxy=behind_proxy),)
    states: Any = import_module("flwr.server.superlink.linkstate.linkstate_factory")
    accepted = fingerprint_of(APP)
    for kind in (states.InMemoryLinkState, states.SqlLinkState):
        kind.store_app, kind.store_fab = only(accepted, kind.store_app), only(accepted, kind.store_fab)
    import_module("flwr.superlink.cli").flower_superlink()


if __name__ == "__main__":
    main()
