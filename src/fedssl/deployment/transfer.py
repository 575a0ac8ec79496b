"""Objects of Flower's messages with fewer copies on their way: over HTTP, and when they are put together.

Flower's client reads an answer record by record of TLS (16 KiB), through two libraries that keep a piece of it each;
`Direct` reads it at once. Putting an array together copies it three times; here it is copied once.
"""

import http.client
import json
import select
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import httpx
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable import inflatable_object
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry
from flwr.supercore.protobuf.client import ProtobufClient

from fedssl.core.memory import keep_freed_memory
from fedssl.federation.engines.flower.api import Array


class Direct(httpx.BaseTransport):
    """Sends requests of httpx over connections of the standard library, which stay open between them."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._tls = verify if isinstance(verify, ssl.SSLContext) else ssl.create_default_context()
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions["timeout"]
        connection = self._connected(request.url, limits["connect"])
        try:
            with _as_httpx(httpx.WriteError, httpx.WriteTimeout):
                connection.sock.settimeout(limits["write"])
                target = request.url.raw_path.decode("ascii")
                connection.request(request.method, target, request.read(), dict(request.headers))
            with _as_httpx(httpx.ReadError, httpx.ReadTimeout):
                connection.sock.settimeout(limits["read"])
                answer = connection.getresponse()
                content = answer.read()
        except BaseException:
            connection.close()
            raise
        if not answer.will_close:
            with self._lock:
                self._idle.append(connection)
        return httpx.Response(answer.status, headers=answer.getheaders(), content=content)

    def _connected(self, url: httpx.URL, seconds: float | None) -> http.client.HTTPConnection:
        """One that is open, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()  # something is there to be read before anything was asked: that it was closed
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(url.host, url.port, timeout=seconds, context=self._tls)
        else:
            connection = http.client.HTTPConnection(url.host, url.port, timeout=seconds)
        with _as_httpx(httpx.ConnectError, httpx.ConnectTimeout):
            connection.connect()
        return connection

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()


@contextmanager
def _as_httpx(error: type[httpx.TransportError], timeout: type[httpx.TransportError]) -> Iterator[None]:
    """Flower's client tries again by the kind of httpx's errors."""
    try:
        yield
    except TimeoutError as caught:
        raise timeout(str(caught)) from caught
    except OSError as caught:
        raise error(str(caught)) from caught
    except http.client.HTTPException as caught:
        raise httpx.RemoteProtocolError(str(caught)) from caught


def direct(client: type[ProtobufClient]) -> type[ProtobufClient]:
    """A client of Flower's that sends with `Direct`; through a proxy, where the environment names one, as before."""

    class Client(client):  # type: ignore[misc, valid-type]
        def __init__(self, *values: Any, verify: Any = True, **named: Any) -> None:
            super().__init__(*values, verify=verify, **named)
            if not isinstance(verify, str):  # the name of a file
                self._client._transport = Direct(verify)

    return Client


class _Chunk(ArrayChunk):
    @classmethod
    def inflate(cls, object_content: bytes, children: Any = None) -> ArrayChunk:
        if children:
            raise ValueError("a part of an array has no parts")
        begin = object_content.find(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER)
        return ArrayChunk(memoryview(object_content)[begin:])


class _Array(Array):
    @classmethod
    def inflate(cls, object_content: bytes, children: Any = None) -> Array:
        """By Flower's own code, all its checks included, with empty parts; then their bytes, in one copy."""
        parts = children or {}
        array = Array.inflate(object_content, dict.fromkeys(parts, ArrayChunk(memoryview(b""))))
        names = inflatable_object.get_object_children_ids_from_object_content(object_content)
        order = json.loads(inflatable_object.get_object_body(object_content, Array))["arraychunk_ids"]
        array.data = b"".join(parts[names[number]].data for number in order)
        return array


@cache
def lean_node() -> None:
    """In the process of a node, before it connects; once."""
    nodes: Any = import_module("flwr.supernode.fleet_http_connection")
    nodes.FleetHttpClient = direct(nodes.FleetHttpClient)
    inflatable_class_registry.update(LEAN)


def lean_grid(grid: Any) -> Any:
    """In the process of the server's app: a grid like this one; Flower made its connection before the app began."""
    grids: Any = import_module("flwr.superlink.grid.http_grid")
    grids.RuntimeHttpClient = direct(grids.RuntimeHttpClient)
    inflatable_class_registry.update(LEAN)
    keep_freed_memory()  # objects come by the hundred, each as large as the last
    lean = grids.HttpGrid(grid._addr, grid._insecure, grid._cert, token=grid._token)
    lean._retry_invoker = grid._retry_invoker  # which Flower tells when to give up
    lean.set_run(grid.run)
    return lean


LEAN: dict[str, Any] = {"ArrayChunk": _Chunk, "Array": _Array}
