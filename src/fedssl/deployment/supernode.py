"""A node of Flower's that answers tasks itself: one process at a site, which stays up between them.

Flower's own SuperNode starts a Python process for every task and hands messages over to it through a port of this
machine. This one speaks the same protocol to the SuperLink, and opens no port. It runs nothing that a server sends: a
run whose app is not, byte for byte, that of this fedssl gets an error, any other is answered by the installed code.
Started as `python -m fedssl.deployment.supernode TABLE`, where TABLE is the JSON of a `Start`.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from fedssl.core.errors import reason, safe_text
from fedssl.core.memory import give_back
from fedssl.deployment import APP, fingerprint_of
from fedssl.deployment.site_folder import Start
from fedssl.experiment.progress.stopping import StopRequest
from fedssl.federation.engines.flower.api import ClientApp, Context, ErrorCode, Message, RecordDict
from fedssl.federation.worker_processes import die_with_the_parent

PAUSE = 3.0  # seconds between two questions for tasks; our SuperLink keeps a question until there is one
SIDE_BY_SIDE = 2  # objects of a message on their way at a time
AGAIN = 0.05  # seconds until an object that is still on its way to the SuperLink is asked for again; doubled up to
AT_MOST = 1.0


def connection(start: Start) -> Any:
    """A context with Flower's connection to the SuperLink: the node's id, and a function for each request."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supernode import fleet_http_connection

    from fedssl.deployment.transfer import lean_node

    lean_node()
    ca = Path(start.ca).read_bytes() if start.ca else None
    private: Any = load_ssh_private_key(Path(start.key).read_bytes(), None) if ca and start.key else None
    return fleet_http_connection.http_request_response(
        start.server, ca is None, ca, private and (private, private.public_key())
    )


class Node:
    """Asks for tasks and answers them, one at a time, for as long as its connection holds."""

    def __init__(self, connected: tuple[Any, ...], facts: dict[str, Any], app: ClientApp, accepted: str) -> None:
        self.node_id, self._receive, self._send, self._get_run, _, self._pull, self._push, self._confirm = connected
        self.facts, self.app, self.accepted = facts, app, accepted
        self._runs: dict[int, bool] = {}  # whether a run's app is ours

    def serve(self) -> None:
        from flwr.supercore.run import RunNotRunningException

        while True:
            begun = time.monotonic()
            try:
                received = self._receive()
                if received is not None:
                    self.answer(*received)
                    continue
            except RunNotRunningException:
                print("its run has ended: a message is left unanswered")
            time.sleep(max(begun + PAUSE - time.monotonic(), 0.0))

    def answer(self, message: Message, tree: Any) -> None:
        about, begun = message.metadata, time.monotonic()
        what = safe_text(f"{about.message_type} message {about.message_id}")
        print(f"round {safe_text(about.group_id)}: Receiving: {what}")
        reply = self._reply(message, tree)
        print(f"round {safe_text(about.group_id)}: Sending: {what}, {time.monotonic() - begun:.1f} s")
        self._deliver(reply, time.monotonic() - begun)
        del reply
        give_back()  # a site that waits needs no memory

    def _reply(self, message: Message, tree: Any) -> Message:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        run_id = message.metadata.run_id
        if run_id not in self._runs:
            self._runs[run_id] = self._get_run(run_id).fab_hash == self.accepted
        if not self._runs[run_id]:
            return _error(message, ErrorCode.INVALID_FAB, "not the app of this fedssl")
        try:
            whole = self._whole(message, tree)
            context = Context(
                run_id=run_id, node_id=self.node_id, node_config=self.facts, state=RecordDict(), run_config={}
            )
            return self.app(whole, context)
        except ObjectPullError as error:  # it may be asked again
            print(safe_text(str(error)))
            return _error(message, ErrorCode.MESSAGE_UNAVAILABLE, "a part of the message did not come")
        except Exception:  # of a message that cannot be unpacked; what it says stays here
            print(*map(safe_text, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
            return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a message that cannot be answered")

    def _whole(self, message: Message, tree: Any) -> Message:
        """The message with its content."""
        objects = import_module("flwr.supercore.inflatable.inflatable_utils")
        about = message.metadata
        ids = [one.object_id for one in objects.iterate_object_tree(tree)]
        contents = objects.pull_objects(ids, lambda one: self._pull(about.run_id, one), **EAGER)
        self._confirm(about.run_id, about.message_id)
        whole: Any = objects.inflate_object_from_contents(about.message_id, contents)
        whole.metadata.__dict__["_message_id"] = about.message_id
        return whole  # type: ignore[no-any-return]

    def _deliver(self, reply: Message, seconds: float) -> None:
        """What cannot be sent is lost; the server asks again, and the answer is on this disk."""
        from flwr.supercore.inflatable import inflatable_object as objects
        from flwr.supercore.run import RunNotRunningException

        try:
            about = reply.metadata
            about.__dict__["_message_id"] = reply.object_id
            with objects.no_object_id_recompute():
                missing, session = self._send(reply, objects.get_object_tree(reply), seconds)
                parts = objects.get_all_nested_objects(reply)
                in_pairs(lambda one: self._push(about.run_id, session, one, parts[one].deflate()), sorted(missing))
        except RunNotRunningException:
            raise
        except Exception as error:
            print(f"the answer could not be sent: {reason(error)}")


EAGER: dict[str, Any] = {"max_tries_per_object": None, "initial_backoff": AGAIN, "backoff_cap": AT_MOST}
"""For Flower's `pull_objects`, which waits a second, then two, then four, for what is just arriving."""


def in_pairs(send: Callable[[str], None], names: list[str]) -> None:
    """Calls `send` for each, a few at a time: no more of a message is copied than is on its way."""
    todo = iter(names)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        while some := list(islice(todo, SIDE_BY_SIDE)):
            list(pool.map(send, some))


def _error(message: Message, code: int, reason: str) -> Message:
    from flwr.app import Error

    return Message(Error(code=code, reason=reason), reply_to=message)


def main() -> None:
    die_with_the_parent(signal.SIGTERM)
    os.umask(0o077)  # states and decoded images of this site are for its user alone
    start = Start.from_text(sys.argv[1])
    try:
        with StopRequest(held_back=0), connection(start) as connected:  # stopped, it tells the server that it goes
            print(f"SuperNode ID: {connected[0]}")
            from fedssl.deployment import site_run  # noqa: F401 - once the server took it, before the first task
            from fedssl.deployment.apps import client_app

            Node(connected, start.node, client_app, fingerprint_of(APP)).serve()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)  # its connection broke; a thread of its own would keep a process alive that does nothing any more


if __name__ == "__main__":
    main()
