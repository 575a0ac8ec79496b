"""Flower's SuperLink with a gate: from other machines only what a client's node needs is answered.

A SuperLink serves three interfaces on one port: for nodes, for whoever starts runs, and for the server's own apps. Only
the first asks for a registered key; through the second, anybody who reaches the port could run code at every site.
Started as `python -m fedssl.engines.flower_superlink` with the arguments of `flower-superlink`.
"""

import ipaddress
import signal
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from fedssl.engines.processes import die_with_the_parent

FOR_NODES = "/v1/fleet/"
ASGI = Callable[..., Awaitable[None]]


class NodesOnly:
    """Middleware: an address that is not this machine's gets 404 for everything but the nodes' interface."""

    def __init__(self, app: ASGI) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: ASGI, send: ASGI) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith(FOR_NODES) or is_here(scope):
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


def main() -> None:
    die_with_the_parent(signal.SIGTERM)
    import_module("fedssl.engines.flower_api")  # telemetry off, before flwr is imported
    middleware = import_module("starlette.middleware").Middleware
    extensions: Any = import_module("flwr.superlink.extensions")
    extensions.get_middleware = lambda: (middleware(NodesOnly),)
    import_module("flwr.superlink.cli").flower_superlink()


if __name__ == "__main__":
    main()
