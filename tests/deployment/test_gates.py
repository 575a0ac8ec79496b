"""The two gates before Flower's SuperLink: who may ask it, and which app it takes."""

import asyncio
import hashlib
from types import SimpleNamespace

import pytest

from fedssl.deployment import APP, fingerprint_of, superlink
from fedssl.deployment.superlink import NodesOnly, is_here
from fedssl.deployment.superlink import only as only_stored


async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200})


def status(path, peer, server="10.0.0.1", kind="http"):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": peer and (peer, 4000), "server": (server, 9092)}
    asyncio.run(NodesOnly(inner)(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/"])
def test_other_machines_reach_the_nodes_interface_only(path):
    assert status(path, "10.0.0.2") == 404
    assert status(path, "2001:db8::1") == 404
    assert status(path, None) == 404
    assert status(path, "no address") == 404
    assert status(path, "10.0.0.2", kind="websocket") == "websocket.close"
    assert [status(path, peer) for peer in ("127.0.0.1", "::1", "10.0.0.1")] == [200] * 3, "this machine itself"
    assert status("/v1/fleet/pull-messages", "10.0.0.2") == 200


def test_a_path_cannot_be_talked_past_the_gate():
    for path in ("/v1/fleet", "/v1//fleet/x", "//v1/fleet/x", "/V1/FLEET/x", "/v1/control/../fleet/x"):
        assert status(path, "10.0.0.2") == 404
    assert not is_here({"client": ("10.0.0.2", 1), "server": None})


def through(path, header, behind_proxy, peer="127.0.0.1"):
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(header, b"127.0.0.1")] if header else []
    scope = {"type": "http", "path": path, "client": (peer, 4000), "server": ("127.0.0.1", 9092), "headers": headers}
    asyncio.run(NodesOnly(inner, behind_proxy=behind_proxy)(scope, None, send))
    return sent[0]["status"]


@pytest.mark.parametrize("header", [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip"])
def test_what_a_proxy_passes_on_is_not_this_machines_own_whatever_address_it_shows(header):
    for behind_proxy in (False, True):
        assert through("/v1/control/start-run", header, behind_proxy) == 404
        assert through("/v1/fleet/pull-messages", header, behind_proxy) == 200


def test_behind_a_proxy_nodes_come_through_it_and_this_machine_is_served_directly():
    """A proxy that does not say that it passes something on lets no node in, which somebody notices."""
    for peer in ("127.0.0.1", "10.0.0.2"):
        assert through("/v1/fleet/pull-messages", None, True, peer) == 404
    assert through("/v1/control/start-run", None, True) == 200
    assert through("/v1/control/start-run", None, True, "10.0.0.2") == 404


@pytest.mark.parametrize("says", [True, False])
def test_a_request_that_is_larger_than_any_of_a_node_is_not_read(monkeypatch, says):
    """Flower would keep it in memory before it asks for a key."""
    monkeypatch.setattr(superlink, "LARGEST", 1000)
    sent, kept = [], []

    async def keeps(scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            kept.append(message["body"])

    async def endless():
        return {"type": "http.request", "body": bytes(300), "more_body": True}

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", b"1001")] if says else []
    scope = {"type": "http", "path": "/v1/fleet/push-object", "client": ("10.0.0.2", 1), "headers": headers}
    asyncio.run(asyncio.wait_for(NodesOnly(keeps)(scope, endless, send), 60))
    assert sum(map(len, kept)) == (0 if says else 900)
    assert [one.get("status") for one in sent][:1] == ([413] if says else [])


def test_the_gate_lets_the_app_start_and_stop():
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope["type"])

    asyncio.run(NodesOnly(app)({"type": "lifespan"}, None, None))
    assert scopes == ["lifespan"]


def test_our_app_has_no_code_and_always_the_same_bytes():
    assert [path.name for path in APP.iterdir()] == ["pyproject.toml"]
    assert fingerprint_of(APP) == fingerprint_of(APP)


def test_flower_accepts_our_app():
    from flwr.cli.config_utils import load_and_validate

    from fedssl import __version__
    from fedssl.deployment import apps

    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert warnings == []
    assert config["project"]["version"] == __version__, "a client takes the app of its own version only"
    assert apps.client_app is not apps.server_app


def test_a_superlink_stores_our_app_and_no_other():
    stored = []
    store = only_stored(hashlib.sha256(b"ours").hexdigest(), lambda state, fab, **about: stored.append((fab, about)))
    ours, theirs = SimpleNamespace(content=b"ours"), SimpleNamespace(content=b"theirs")
    store("state", ours, app_id="x")
    assert stored == [(ours, {"app_id": "x"})]
    for call in (lambda: store("state", theirs), lambda: store("state", fab=theirs, app_id="x")):
        with pytest.raises(ValueError, match="runs no app but that of its own fedssl"):
            call()
    assert len(stored) == 1
