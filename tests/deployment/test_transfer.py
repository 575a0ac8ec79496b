"""Objects with fewer copies: what comes out is what Flower's own code gives, and its errors are those it knows."""

import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import pytest
from flwr.app import RecordDict
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedssl.deployment.transfer import LEAN, Direct, direct
from fedssl.federation.engines.flower.api import Array, ArrayRecord, Message
from tests.helpers.flower_grid import TaskIdentity

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
CHUNK = 5 * 2**20


class Echo(BaseHTTPRequestHandler):
    """Answers with what was sent; /torn, /silent and /close misbehave."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.client_address, self.path, self.headers["x-own"]))
        if self.path == "/silent":
            self.server.enough.wait(60)
            return
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("content-length", str(len(body) + (self.path == "/torn")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path in ("/torn", "/close")

    def log_message(self, *values):
        pass


@contextmanager
def serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.enough = True, threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.enough.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Echo, "seen", [])
    with serving(Echo) as url:
        yield url


@pytest.fixture
def client():
    with httpx.Client(transport=Direct(verify=False), timeout=30.0) as made:
        yield made


def test_a_connection_is_used_again_until_it_is_closed(server, client):
    content = bytes(range(256)) * 2**12
    for _ in range(3):
        answer = client.post(f"{server}/here?now", content=content, headers={"x-own": "yes"})
        assert (answer.status_code, answer.content) == (200, content)
    assert len({address for address, _, _ in Echo.seen}) == 1
    assert {(path, own) for _, path, own in Echo.seen} == {("/here?now", "yes")}
    assert client.post(f"{server}/missing", content=b"x").status_code == 404
    client.post(f"{server}/close", content=b"x")
    while not any(client._transport._idle and _ends(one.sock) for one in client._transport._idle):
        pass  # the server's end of it takes a moment
    assert client.post(f"{server}/after", content=b"y").content == b"y"
    assert len({address for address, _, _ in Echo.seen}) == 2


def _ends(connected):
    return connected.recv(1, socket.MSG_PEEK) == b""


def test_errors_are_those_that_flower_knows(server, client):
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(f"{server}/torn", content=b"x")
    with pytest.raises(httpx.ReadTimeout):
        client.post(f"{server}/silent", content=b"x", timeout=0.05)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError):
            client.post(f"http://127.0.0.1:{unused.getsockname()[1]}", content=b"x")
    assert not client._transport._idle, "none of these is used again"


def test_a_client_of_flowers_speaks_over_it_and_keeps_to_a_proxy(server, monkeypatch):
    class Link(Echo):
        def do_POST(self):
            asked = PullObjectRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            answer = PullObjectResponse(object_found=True, object_content=asked.object_id.encode())
            self.send_response(200)
            self.send_header("content-length", str(answer.ByteSize()))
            self.end_headers()
            self.wfile.write(answer.SerializeToString())

    with serving(Link) as url:
        address = url.removeprefix("http://")
        with direct(FleetHttpClient).from_server_address(address, True, None, []) as flower:
            assert flower.PullObject(PullObjectRequest(object_id="abc")).object_content == b"abc"
            assert isinstance(flower._client._transport, Direct)
        monkeypatch.setenv("ALL_PROXY", server)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with direct(FleetHttpClient).from_server_address("elsewhere.example:80", True, None, []) as flower:
            flower.PullObject(PullObjectRequest(object_id="abc"))
    assert [path for _, path, _ in Echo.seen] == ["http://elsewhere.example/v1/fleet/pull-object"]


@pytest.mark.parametrize("data", [b"", b"abc", bytes(2 * CHUNK) + b"end", bytes(range(256)) * (CHUNK // 128)])
def test_an_array_is_put_together_as_flower_does_it(data, monkeypatch):
    """Also of equal parts, which are sent once."""
    array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    message = Message(RecordDict({"tensors": ArrayRecord({"all": array})}), dst_node_id=7, message_type="train")
    contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    for name, kind in LEAN.items():
        monkeypatch.setitem(inflatable_class_registry, name, kind)
    got = inflate_object_from_contents(message.object_id, dict(contents))
    assert got.content["tensors"]["all"] == array
    assert got.object_id == message.object_id


def test_an_array_with_other_parts_than_it_names_is_refused():
    array = Array(dtype="uint8", shape=(3,), stype="safetensors", data=b"abc")
    ((name, part),) = array.children.items()
    with pytest.raises(ValueError, match="Unexpected set of `children`"):
        LEAN["Array"].inflate(array.deflate(), {"0" * 64: part})
    with pytest.raises(ValueError, match="no parts"):
        LEAN["ArrayChunk"].inflate(part.deflate(), {name: part})
