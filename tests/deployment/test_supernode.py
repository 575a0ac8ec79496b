"""A node that answers tasks itself, on a connection that is a dictionary."""

import os
from types import SimpleNamespace

import pytest
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.run import RunNotRunningException

from fedssl.deployment import supernode
from fedssl.deployment.site_folder import Start
from fedssl.deployment.supernode import Node, in_pairs
from fedssl.federation.engines.flower.api import Array, ArrayRecord, ClientApp, ErrorCode, Message
from tests.helpers.flower_grid import TaskIdentity

CHUNK = 5 * 2**20
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def task(data):
    array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    message = Message(RecordDict({"tensors": ArrayRecord({"all": array})}), dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


class Link:
    """What a connection of Flower's does, with one task."""

    def __init__(self, message, app="ours"):
        self.tree, self.bare = get_object_tree(message), Message(RecordDict(), reply_to=message)
        self.bare.__dict__["_metadata"] = message.metadata
        self.objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        self.app, self.confirmed, self.sent, self.runs = app, [], [], 0
        self.questions, self.pushed, self.late = 0, {}, set()

    def connected(self):
        return (7, self.receive, self.send, self.get_run, None, self.pull, self.push, self.confirm)

    def receive(self):
        self.questions += 1
        if self.questions == 1:
            return self.bare, self.tree
        raise RunNotRunningException if self.questions == 2 else ConnectionError("the SuperLink is gone")

    def get_run(self, run_id):
        self.runs += 1
        return SimpleNamespace(fab_hash=self.app)

    def pull(self, run_id, name):
        if name in self.late:
            self.late.remove(name)
            raise ObjectUnavailableError(name)
        if name not in self.objects:
            raise ObjectPullError(name, "it is gone")
        return self.objects[name]

    def confirm(self, run_id, name):
        self.confirmed.append(name)

    def send(self, reply, tree, seconds):
        self.sent.append(reply)
        return set(get_all_nested_objects(reply)), "session"

    def push(self, run_id, session, name, content):
        self.pushed[name] = content


@pytest.fixture
def app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        assert context.node_config == {"name": "north"}
        data = message.content["tensors"]["all"].data
        return Message(task(data[::-1]).content, reply_to=message)

    return app


def served(link, app, monkeypatch):
    monkeypatch.setattr(supernode, "PAUSE", 0.0)
    monkeypatch.setitem(supernode.EAGER, "initial_backoff", 0.001)
    with pytest.raises(ConnectionError):
        Node(link.connected(), {"name": "north"}, app, "ours").serve()
    (reply,) = link.sent
    return reply


def test_a_task_of_many_parts_is_answered_in_this_process(app, monkeypatch):
    data = bytes(CHUNK) + b"end"
    message = task(data)
    link = Link(message)
    link.late = set(list(link.objects)[:2])
    reply = served(link, app, monkeypatch)
    assert not reply.has_error()
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert reply.content["tensors"]["all"].data == data[::-1]
    assert link.confirmed == [message.metadata.message_id]
    assert link.pushed == {name: one.deflate() for name, one in get_all_nested_objects(reply).items()}
    assert link.runs == 1


def test_a_run_of_another_app_gets_an_error_and_no_answer(app, monkeypatch):
    link = Link(task(b"x"), app="another")
    reply = served(link, app, monkeypatch)
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert not link.confirmed


def test_a_message_that_stays_incomplete_is_asked_for_again(app, monkeypatch):
    link = Link(task(b"x"))
    link.objects.popitem()
    assert served(link, app, monkeypatch).error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_what_is_wrong_with_a_message_is_said_here_and_not_to_the_server(app, monkeypatch, capfd):
    link = Link(task(b"x"))
    link.objects = dict.fromkeys(link.objects, b"ArrayChunk,,3\x00\x00\x00secret")
    reply = served(link, app, monkeypatch)
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == "a message that cannot be answered"
    assert "Traceback" in capfd.readouterr().err


def test_an_answer_that_cannot_be_sent_ends_nothing(app, monkeypatch, capfd):
    link = Link(task(b"x"))
    link.push = lambda *_: (_ for _ in ()).throw(OSError("no way"))
    served(link, app, monkeypatch)
    assert "the answer could not be sent: OSError: no way" in capfd.readouterr().out
    assert link.questions == 3


def test_what_a_server_says_reaches_no_terminal_as_it_is(app, monkeypatch, capfd):
    """Names of rounds and kinds of messages are the server's: none of them may steer a terminal or make up a line."""
    message = task(b"x")
    message.metadata.__dict__["_group_id"] = "1\x1b[2J\nSuperNode ID: 7"
    link = Link(message)
    link.push = lambda *_: (_ for _ in ()).throw(OSError("no\x1b[2J way"))
    served(link, app, monkeypatch)
    printed = capfd.readouterr().out
    assert r"round 1\x1b[2J\nSuperNode ID: 7: Receiving: train message" in printed
    assert "\x1b" not in printed


def test_what_a_node_writes_is_for_its_owner_alone(monkeypatch):
    masks, before = [], os.umask(0o022)

    def connection(start):
        masks.append(os.umask(0o022))
        raise ConnectionError

    def ended(code):
        raise SystemExit(code)

    monkeypatch.setattr(supernode, "connection", connection)
    monkeypatch.setattr(supernode, "die_with_the_parent", lambda _: None)
    monkeypatch.setattr(supernode.signal, "signal", lambda *_: None)
    monkeypatch.setattr(supernode.os, "_exit", ended)
    monkeypatch.setattr("sys.argv", ["supernode", Start("here:1", "", "", {}).as_text()])
    with pytest.raises(SystemExit):
        supernode.main()
    os.umask(before)
    assert masks == [0o077]


def test_parts_are_made_when_they_are_sent():
    names, sent = [str(number) for number in range(5)], []
    in_pairs(sent.append, names)
    assert sorted(sent) == names
