"""A grid without Flower's processes: messages are answered when somebody looks, nodes come and go as a test says."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

from flwr.app import Error, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedssl.deployment.apps import AtSite
from fedssl.deployment.server_run import key_bytes
from fedssl.federation.engines.flower.api import Context, ErrorCode, Message
from fedssl.federation.engines.flower.client_app import Host, make_client_app

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def node(node_id, since="first", key=b""):
    return SimpleNamespace(node_id=node_id, last_activated_at=since, public_key=key)


@dataclass
class FakeGrid:
    """`answer(message, node_id)` gives the reply of a node's app; None: it says nothing."""

    nodes: list
    answer: object
    sent: dict = field(default_factory=dict)
    pushed: list = field(default_factory=list)
    pushes: int = 0
    numbers: itertools.count = field(default_factory=itertools.count)

    def get_nodes(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids, self.pushes = [], self.pushes + 1
        for message in messages:
            message_id = f"message {next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.sent[message_id] = message
            self.pushed.append(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids):
        found = []
        for message_id in message_ids:
            message = self.sent[message_id]
            reply = self.answer(message, message.metadata.dst_node_id)
            if reply is not None:
                del self.sent[message_id]
                found.append(reply)
        return found


def unavailable(message, code=ErrorCode.NODE_UNAVAILABLE):
    return Message(Error(code=code, reason="says Flower"), reply_to=message)


def context(node_config):
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


@dataclass
class Place(Host):
    """Where an app runs that has this side, or none."""

    path: object
    side: object = None
    refusal: Exception | None = None

    def open(self, node, about):
        if self.refusal:
            raise self.refusal
        return self.side

    def admit(self, node, about):
        self.open(node, about)

    def log(self, node):
        return self.path

    def name(self, node):
        return node.get("name", "anybody")


def answering(side, node_config=None):
    """The answer of nodes that all have this side of a run."""
    app = make_client_app(Place(side.log, side))
    return lambda message, node_id: app(message, context(node_config or {}))


def grid_of_sites(folder, names, keys=None, **more):
    """The sites of a deployment under one folder, each with its images in `sites/NAME` and its state beside them.

    `keys`: a folder with their NAME.key and NAME.pub and a roster, by which the nodes are known, too.
    """
    client_app = make_client_app(AtSite())

    def answer(message, node_id):
        name = names[node_id]
        secure = {"key": str(keys / f"{name}.key"), "roster": str(keys / "roster")} if keys else {}
        about = {"name": name, "data": str(folder / "sites" / name), "state": str(folder / name / "state")}
        return client_app(message, context(about | secure | more))

    known = [key_bytes((keys / f"{name}.pub").read_bytes()) if keys else b"" for name in names]
    return FakeGrid([node(number, key=key) for number, key in enumerate(known)], answer)
