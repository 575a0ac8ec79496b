"""On the path of a deployment's processes: the CPU seconds of each step of a round, into $FEDSSL_HOPS/<pid>.json.

A step's own time is that of its thread, without the steps inside it. Used by `benchmarks.deployment --hops`.
"""

import importlib.util
import inspect
import json
import os
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path

STEPS = {  # where a function is, and the step that it belongs to
    "ssl:SSLSocket.read": "TLS, read",
    "ssl:SSLSocket.send": "TLS, write",
    "ssl:SSLSocket.sendall": "TLS, write",
    "ssl:SSLSocket.recv_into": "TLS, read",
    "ssl:SSLObject.read": "TLS, read",
    "ssl:SSLObject.write": "TLS, write",
    "httpx:Client.send": "HTTP, client",
    "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.data_received": "HTTP, server",
    "uvicorn.protocols.http.httptools_impl:RequestResponseCycle.run_asgi": "HTTP, server",
    "starlette.middleware.base:BaseHTTPMiddleware.__call__": "HTTP, server",
    "flwr.supercore.protobuf.client:ProtobufClient._unary_unary": "protobuf",
    "flwr.supercore.protobuf.translation:ProtobufTranslationMiddleware._parse_request": "protobuf",
    "flwr.supercore.protobuf.translation:ProtobufTranslationMiddleware._response_for": "protobuf",
    "flwr.supercore.object_store.in_memory_object_store:InMemoryObjectStore.put": "objects checked (SHA-256)",
    "flwr.supercore.inflatable.inflatable_object:get_object_id": "objects named (SHA-256)",
    "flwr.supercore.inflatable.inflatable_object:add_header_to_object_body": "objects cut",
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": "objects put together",
    "flwr.superlink.routers.fleet.node_auth:authenticate_node": "signatures",
    "flwr.supernode.node_auth_http_interceptor:sign_message": "signatures",
    "fedssl.federation.engines.flower.messages:pack_tensors": "tensors to a buffer",
    "fedssl.federation.engines.flower.messages:unpack_tensors": "buffer to tensors",
    "fedssl.core.sealed:write_tensors": "tensors to disk",
    "fedssl.core.sealed:sync": "flushed to disk",
    "fedssl.core.checksums:measure": "files checked (SHA-256)",
    "fedssl.core.weights:Weights.digest": "weights named (SHA-256)",
    "fedssl.core.weights:Weights.of": "weights copied",
    "fedssl.core.weights:Weights.load_into": "weights copied",
    "fedssl.federation.client:Client.train": "around training",
    "fedssl.federation.local_training:train_locally": "training",
    "fedssl.federation.validation:inspect": "replies inspected",
    "fedssl.federation.rounds:accept": "averaging",
}
_seconds: dict[str, float] = defaultdict(float)
_thread = threading.local()


@contextmanager
def counted(step):
    stack = _thread.__dict__.setdefault("stack", [])
    begun = time.thread_time()
    stack.append(0.0)
    try:
        yield
    finally:
        whole = time.thread_time() - begun
        _seconds[step] += whole - stack.pop()
        if stack:
            stack[-1] += whole


def timed(step, function):
    def wrapped(*values, **named):
        with counted(step):
            return function(*values, **named)

    async def wrapped_coroutine(*values, **named):
        return await Awaited(step, function(*values, **named))

    return wrapped_coroutine if inspect.iscoroutinefunction(function) else wrapped


class Awaited:
    """A coroutine that counts while it runs, not while it waits."""

    def __init__(self, step, coroutine) -> None:
        self.step, self.coroutine = step, coroutine

    def __await__(self):
        resume, given = self.coroutine.send, None
        while True:
            try:
                with counted(self.step):
                    waits_for = resume(given)
            except StopIteration as end:
                return end.value
            try:
                resume, given = self.coroutine.send, (yield waits_for)
            except BaseException as error:  # cancelled
                resume, given = self.coroutine.throw, error


def wrap(module) -> None:
    for place, step in STEPS.items():
        name, _, path = place.partition(":")
        if name == module.__name__:
            *outer, last = path.split(".")
            owner = module
            for part in outer:
                owner = getattr(owner, part)
            kept = owner.__dict__.get(last) if outer else getattr(owner, last, None)
            if kept is None:
                continue  # another version of what is measured
            if isinstance(kept, staticmethod | classmethod):
                setattr(owner, last, type(kept)(timed(step, kept.__func__)))
            else:
                setattr(owner, last, timed(step, kept))


class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if not any(place.startswith(f"{name}:") for place in STEPS):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = Wrapping(spec.loader)
        return spec


class Wrapping(Loader):
    def __init__(self, loader) -> None:
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        self.loader.exec_module(module)
        wrap(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


def write() -> None:
    path = Path(os.environ["FEDSSL_HOPS"], f"{os.getpid()}.json")
    while True:
        time.sleep(0.25)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(dict(_seconds)))
        new.replace(path)


if "FEDSSL_HOPS" in os.environ:
    sys.meta_path.insert(0, Finder())
    if "ssl" in sys.modules:
        wrap(sys.modules["ssl"])
    threading.Thread(target=write, daemon=True).start()
