"""Flower's SuperNode that takes one app only: the one that came with this fedssl.

A SuperNode runs whatever app the server sends. This one compares it, byte for byte, with its own, which holds no code
but names the apps of the installed fedssl: so the server decides about settings and weights, never about code.
Started as `python -m fedssl.deployment.supernode` with the arguments of `flower-supernode`.
"""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fedssl.deployment import APP, fingerprint_of
from fedssl.federation.worker_processes import die_with_the_parent


def only(accepted: str, get_fab: Callable[..., Any]) -> Callable[..., Any]:
    """A `get_fab` that marks what it got as ours or not, in the way that the node's own check understands."""

    def checked(fab_hash: str, run_id: int) -> Any:
        fab = get_fab(fab_hash, run_id)
        fab.verifications.clear()
        if hashlib.sha256(fab.content).hexdigest() == accepted:
            fab.verifications["valid_license"] = "the app of this fedssl"
        return fab

    return checked


def main() -> None:
    die_with_the_parent(signal.SIGTERM)
    import_module("fedssl.federation.engines.flower.api")  # telemetry off, before flwr is imported
    internal: Any = import_module("flwr.supernode.start_client_internal")
    command: Any = import_module("flwr.supernode.cli.flower_supernode")  # its package has a function of this name

    accepted, connect, start = fingerprint_of(APP), internal.http_request_response, internal.start_client_internal

    def connect_checked(*values: Any, **options: Any) -> Any:
        return checked_connection(connect(*values, **options), accepted)

    def start_checked(**options: Any) -> None:
        start(**(options | {"trusted_entities": {"fedssl": accepted}}))

    internal.http_request_response = connect_checked
    internal._verify_fab = lambda fab, _: hashlib.sha256(fab.content).hexdigest() == accepted
    command.start_client_internal = start_checked
    command.flower_supernode()
    os._exit(1)  # its connection broke; a thread of its own would keep a process alive that does nothing any more


@contextmanager
def checked_connection(connection: Any, accepted: str) -> Iterator[tuple[Any, ...]]:
    """The node's connection, whose way to get an app is checked."""
    with connection as (node_id, receive, send, get_run, get_fab, *rest):
        yield (node_id, receive, send, get_run, only(accepted, get_fab), *rest)


if __name__ == "__main__":
    main()
