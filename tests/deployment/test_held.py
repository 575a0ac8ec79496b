"""A question for tasks, or a part of one, is answered when it is there: no sooner, no later; nobody who has gone."""

import asyncio

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest

from fedssl.deployment import superlink
from fedssl.deployment.superlink import ASK, HOLD, PART, PARTS, TASKS, Held, named_in


class Link:
    """Flower's side: tasks by node, as bytes, and how often it was asked."""

    def __init__(self):
        self.tasks, self.asked, self.status, self.bodies = {}, 0, 200, []
        self.parts = {}  # what each holds; b"" for those that are only announced

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.bodies.append(body)
        answer = b""
        if scope["path"] == ASK:
            self.asked += 1
            (node,) = named_in(ASK, body) or {0}
            answer = self.tasks.pop(node, b"")
        elif scope["path"] == TASKS:
            self.tasks |= dict.fromkeys(named_in(TASKS, body), b"a task")
        elif scope["path"] == PART:
            self.asked += 1
            answer = self.part(*named_in(PART, body))
        elif scope["path"] == PARTS:
            self.parts |= dict.fromkeys(named_in(PARTS, body), b"content")
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": answer})

    def part(self, name):
        content = self.parts.get(name)
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content or b""
        ).SerializeToString()


async def post(held, path, body, gone=None, torn=False):
    """The body of the answer; None: there was none."""
    sent, parts = [], [{"type": "http.request", "body": body[:3], "more_body": True}]
    parts.append({"type": "http.disconnect"} if torn else {"type": "http.request", "body": body[3:]})

    async def receive():
        if parts:
            return parts.pop(0)
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(part):
        sent.append(part)

    await held({"type": "http", "path": path}, receive, send)
    return b"".join(part.get("body", b"") for part in sent) if sent else None


def ask(node):
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def push(*nodes):
    return PushAppMessagesRequest(
        messages_list=[Message(metadata=Metadata(dst_node_id=node)) for node in nodes]
    ).SerializeToString()


def test_a_node_is_answered_when_a_task_comes_and_no_other_is_woken():
    async def story():
        link = Link()
        held = Held(link)
        first, second = (asyncio.create_task(post(held, ASK, ask(node))) for node in (1, 2))
        while link.asked < 2:
            await asyncio.sleep(0)
        assert await post(held, TASKS, push(1)) == b""
        assert await first == b"a task"
        assert link.asked == 3, "the other one was not asked for in vain"
        await post(held, TASKS, push(2, 3))
        assert await second == b"a task"
        assert await post(held, ASK, ask(3)) == b"a task", "what waits is given at once"
        assert await post(held, "/v1/fleet/other", b"abcd") == b""

    asyncio.run(asyncio.wait_for(story(), 60))


def pull(name):
    return PullObjectRequest(object_id=name, node=Node(node_id=1)).SerializeToString()


def send(name):
    return PushObjectRequest(object_id=name, object_content=b"content").SerializeToString()


def test_a_part_that_is_announced_is_given_when_it_comes_and_what_nobody_announced_is_refused_at_once():
    async def story():
        link = Link()
        link.parts = {"a": b"", "b": b"", "c": b"content"}
        held = Held(link)
        first, again, other = (asyncio.create_task(post(held, PART, pull(name))) for name in ("a", "a", "b"))
        while link.asked < 3:
            await asyncio.sleep(0)
        await post(held, PARTS, send("a"))
        assert await first == await again == link.part("c"), "all who asked for it"
        assert link.asked == 5, "the other one was not asked for in vain"
        await post(held, PARTS, send("b"))
        assert await other == link.part("c")
        assert await post(held, PART, pull("c")) == link.part("c")
        assert await post(held, PART, pull("nobody's")) == PullObjectResponse().SerializeToString()
        assert not held._waiting

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("path", [ASK, PART])
def test_a_question_is_not_kept_for_ever(path, monkeypatch):
    monkeypatch.setitem(HOLD, path, 0.01)
    link = Link()
    link.parts = {"a": b""}
    question, nothing = {ASK: (ask(1), b""), PART: (pull("a"), link.part("a"))}[path]
    assert asyncio.run(asyncio.wait_for(post(Held(link), path, question), 60)) == nothing
    assert link.asked == 2


def test_a_task_is_not_given_to_a_node_that_has_gone():
    async def story():
        link, gone = Link(), asyncio.Event()
        held = Held(link)
        question = asyncio.create_task(post(held, ASK, ask(1), gone))
        while not link.asked:
            await asyncio.sleep(0)
        gone.set()
        assert await question is None
        await post(held, TASKS, push(1))
        assert link.tasks == {1: b"a task"}

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b""])
def test_what_cannot_be_read_is_left_to_flower(body):
    link = Link()
    link.status = 400
    link.part = lambda name="": b""
    for path in (ASK, TASKS, PART, PARTS):
        assert asyncio.run(asyncio.wait_for(post(Held(link), path, body), 60)) == b""
    assert link.asked == 2, "an error is passed on at once"


def test_who_asks_in_the_name_of_a_node_neither_takes_its_place_nor_stays():
    """Anybody can say that they are node 1; Flower refuses them, and node 1 is woken all the same."""

    async def story():
        link = Link()
        held = Held(link)
        node = asyncio.create_task(post(held, ASK, ask(1)))
        while not link.asked:
            await asyncio.sleep(0)
        link.status = 401
        for number in range(1, 50):
            assert await post(held, ASK, ask(number)) == b""
        link.status = 200
        assert list(held._waiting) == [1], "nobody who was refused is remembered"
        await post(held, TASKS, push(1))
        assert await node == b"a task"
        assert not held._waiting

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("path", [ASK, TASKS, "/v1/fleet/push-object"])
def test_flower_gets_a_body_in_one_piece_and_none_whose_sender_has_gone(path, monkeypatch):
    monkeypatch.setitem(HOLD, ASK, 0.0)
    link = Link()
    held = Held(link)
    assert asyncio.run(asyncio.wait_for(post(held, path, push(4), torn=True), 60)) is None
    assert not link.bodies
    asyncio.run(asyncio.wait_for(post(held, path, push(4)), 60))
    assert link.bodies == [push(4)]


def test_the_server_hears_of_a_reply_when_it_comes_and_of_none_after_a_moment(monkeypatch):
    async def story():
        link = Link()
        held = Held(link)
        look = asyncio.create_task(post(held, "/v1/runtime/get-nodes", b"look"))
        await asyncio.sleep(0.01)
        await post(held, "/v1/fleet/pull-object", b"an object")
        await asyncio.sleep(0.01)
        assert not look.done(), "an object is no news"
        await post(held, "/v1/fleet/push-messages", b"a reply")
        assert await look == b""
        await post(held, "/v1/fleet/push-messages", b"another")
        assert await post(held, "/v1/runtime/get-nodes", b"look") == b"", "of what came meanwhile it hears at once"
        await post(held, "/v1/runtime/confirm-message-received", b"got it")
        assert await post(held, "/v1/runtime/get-nodes", b"look") == b"", "nor does it wait once it has a reply"
        gone = asyncio.Event()
        gone.set()
        assert await post(held, "/v1/runtime/get-nodes", b"look", gone) is None
        monkeypatch.setattr(superlink, "A_MOMENT", 0.01)
        assert await post(held, "/v1/runtime/get-nodes", b"look") == b""
        assert link.bodies.count(b"look") == 4

    monkeypatch.setattr(superlink, "A_MOMENT", 600.0)
    asyncio.run(asyncio.wait_for(story(), 60))
