"""The ways that hospitals' networks leave open: a proxy, a company's CA, a proxy before the server; and the check."""

import json
import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeResponse
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import FedsslError
from fedssl.deployment import certificates, site_check
from fedssl.deployment.certificates import (
    ServerCertificate,
    check_server_certificate,
    make_node_key,
    make_roster,
    make_server_certificate,
)
from fedssl.deployment.network import connect, proxy_for, without_proxy
from fedssl.deployment.policy import policy_text
from fedssl.deployment.site import Site
from fedssl.deployment.site_check import check_site
from fedssl.deployment.supervision import environment, reachable
from tests.helpers.deployed import write_images
from tests.helpers.ports import free_port

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in VARIABLES:
        for one in (name, name.lower()):
            monkeypatch.setenv(one, "")
            monkeypatch.delenv(one)  # also what a test sets by itself is gone afterwards


@contextmanager
def serving(handler, context=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


def make_proxy(allowed, known=False):
    """A proxy that lets only this port through, and notes whom it was asked for and by whom; `known`: who says so."""
    asked = []

    class Proxy(Quiet):
        def do_CONNECT(self):
            host, _, port = self.path.rpartition(":")
            asked.append((host, self.headers.get("Proxy-Authorization")))
            if known and not asked[-1][1]:
                self.send_error(407, "Proxy Authentication Required")
                return
            if int(port) != allowed:
                self.send_error(403, "Access violation")
                return
            with socket.create_connection(("127.0.0.1", int(port))) as there:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=carry, args=(there, self.connection), daemon=True)
                back.start()
                carry(self.connection, there)
                back.join(5)

    return Proxy, asked


def carry(one, other):
    try:
        while block := one.recv(65536):
            other.sendall(block)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Link(Quiet):
    """Answers as a SuperLink does; `refusal` is the status with which it refuses a key."""

    refusal, body, date = 0, b"", None

    def date_time_string(self, timestamp=None):
        return self.date if self.date is not None else super().date_time_string(timestamp)

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        done = {"activate-node": ActivateNodeResponse(node_id=7), "deactivate-node": DeactivateNodeResponse()}
        body = self.body if self.refusal else done[self.path.rpartition("/")[2]].SerializeToString()
        self.send_response(self.refusal or 200)
        self.send_header("Content-Type", "application/json" if self.refusal else "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def tls(made):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    return context


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A server's certificate for fl.example.org, and a site with key, roster and images."""
    folder = tmp_path_factory.mktemp("networks")
    made = make_server_certificate(folder / "certificates", ["fl.example.org"])
    publics = [make_node_key(folder / "keys", name)[1] for name in ("north", "south")]
    make_roster(folder / "keys/roster", publics)
    write_images(folder / "images", 1, count=3)
    return folder, made


def site_at(place, port, tmp_path, **changes):
    folder, made = place
    usual = {
        "name": "north",
        "server": f"127.0.0.1:{port}",
        "state": tmp_path / "state",
        "data": str(folder / "images"),
        "ca": made.ca,
        "key": folder / "keys/north.key",
        "roster": folder / "keys/roster",
    }
    return Site(**(usual | changes))


def lines_of(site, policy=None):
    return {line.what: line for line in check_site(site, policy)}


# --- proxies


def test_a_proxy_is_taken_from_the_environment_but_never_to_this_machine(monkeypatch):
    assert proxy_for("fl.example.org") == ""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://plain:3128")
    assert proxy_for("fl.example.org") == "http://proxy:3128"
    assert proxy_for("fl.example.org", tls=False) == "http://plain:3128"
    assert [proxy_for(host) for host in ("localhost", "127.0.0.1", "::1")] == [""] * 3
    monkeypatch.setenv("NO_PROXY", ".example.org")
    assert proxy_for("fl.example.org") == ""


def test_processes_of_one_machine_speak_to_each_other_without_the_proxy(monkeypatch, tmp_path):
    """HTTP_PROXY would catch what a node and its own app say to each other."""
    monkeypatch.setenv("no_proxy", "intranet")
    found = environment(tmp_path, "10.0.0.5")
    assert found["NO_PROXY"] == found["no_proxy"] == "intranet,localhost,127.0.0.1,::1,10.0.0.5"
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    for name, value in without_proxy().items():
        monkeypatch.setenv(name, value)
    import httpx

    with httpx.Client() as client:  # with which Flower connects
        for url in ("http://127.0.0.1:1/", "https://localhost:1/", "https://[::1]:1/"):
            assert client._transport_for_url(httpx.URL(url)) is client._transport
        assert client._transport_for_url(httpx.URL("https://fl.example.org/")) is not client._transport


def test_a_server_is_reached_through_a_proxy_that_may_ask_for_a_password(place):
    _, made = place
    with serving(Link, tls(made)) as port:
        handler, asked = make_proxy(port)
        with serving(handler) as by:
            assert reachable("fl.example.org", port, made.ca, proxy=f"http://me:p%40ss@127.0.0.1:{by}") == ""
            assert asked == [("fl.example.org", "Basic bWU6cEBzcw==")]
            why = reachable("fl.example.org", port + 1, made.ca, proxy=f"127.0.0.1:{by}")
            assert why == f"the proxy 127.0.0.1:{by}: Tunnel connection failed: 403 Access violation"
    assert "the proxy 127.0.0.1" in reachable("fl.example.org", 443, made.ca, proxy=f"http://127.0.0.1:{free_port()}")
    for odd in ("socks5://proxy:1080", "http://", "http://proxy:port"):
        with pytest.raises(FedsslError, match=r"^HTTPS_PROXY: expected an address such as http://"):
            connect("fl.example.org", 443, 1.0, odd)


# --- a company's CA


def signed_by(made, ca_key, subject, key, *, ca):
    issuer = x509.load_pem_x509_certificate(made.read_bytes()).subject
    builder = certificates._builder(certificates._name(subject), issuer, key.public_key(), 10)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    names = [x509.DNSName("fl.example.org")]
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(ca_key, hashes.SHA256())


def test_a_certificate_of_a_ca_between_and_two_cas_in_one_file(place, tmp_path):
    """As companies have them: a root that signs CAs, which sign servers; and a change from one root to the next."""
    _, other = place
    root = make_server_certificate(tmp_path, [])
    root_key = _private(tmp_path / "ca.key")
    between_key, key = certificates._new_key(), certificates._new_key()
    between = tmp_path / "between.pem"
    between.write_bytes(certificates._pem(signed_by(root.ca, root_key, "issuing CA", between_key, ca=True)))
    leaf = certificates._pem(signed_by(between, between_key, "fl.example.org", key, ca=False))
    (tmp_path / "leaf.key").write_bytes(certificates._private_pem(key))
    (tmp_path / "chain.pem").write_bytes(leaf + between.read_bytes())
    (tmp_path / "leaf.pem").write_bytes(leaf)
    (tmp_path / "both.pem").write_bytes(other.ca.read_bytes() + root.ca.read_bytes())
    for ca in (root.ca, tmp_path / "both.pem", between):
        check_server_certificate(ServerCertificate(ca, tmp_path / "chain.pem", tmp_path / "leaf.key"))
    for ca, chain in ((root.ca, "leaf.pem"), (other.ca, "chain.pem")):
        with pytest.raises(FedsslError, match=r"is not signed by .*put that CA's certificate at the end of"):
            check_server_certificate(ServerCertificate(ca, tmp_path / chain, tmp_path / "leaf.key"))


def _private(path):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(path.read_bytes(), None)


# --- fedssl client check


def test_a_site_with_all_that_it_needs(place, tmp_path, monkeypatch):
    folder, made = place
    monkeypatch.setattr(site_check, "LEAST_FREE", 1.0)
    with serving(Link, tls(made)) as port:
        command = ["client", "check", "--name", "north", "--server", f"127.0.0.1:{port}", "--state", tmp_path / "state"]
        command += ["--data", folder / "images", "--ca", made.ca, "--key", folder / "keys/north.key"]
        done = CliRunner().invoke(app, [str(word) for word in (*command, "--roster", folder / "keys/roster")])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    found = ["DNS", "port", "TLS", "CA", "clock", "key", "roster", "disk", "images", "policy"]
    assert [line.split()[:2] for line in lines] == [["ok", what] for what in found]
    assert "a certificate by 'fedssl CA of fl.example.org'" in lines[2]
    assert lines[5].endswith("north.key: the server knows it")
    assert "2 sites in the roster, fingerprint " in lines[6]
    assert "3 in " in lines[8]


def test_what_does_not_hold_is_a_line_with_the_remedy_and_an_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(site_check, "LEAST_FREE", 1e30)
    command = ["client", "check", "--name", "north", "--server", f"127.0.0.1:{free_port()}", "--data", "nowhere"]
    done = CliRunner().invoke(app, [*command, "--policy", "policy.toml"])
    assert done.exit_code == 1
    states = {line.split()[1]: line.split()[0] for line in done.output.splitlines()}
    assert states == {"DNS": "ok", "TLS": "–", "CA": "–", "clock": "–"} | dict.fromkeys(
        ("port", "key", "disk", "images", "policy"), "NO"
    )
    for remedy in ("is `fedssl server` running", "fedssl certificates node north", "make room", "policy init"):
        assert remedy in done.output


def test_a_name_without_an_address_and_a_port_without_tls(place, tmp_path):
    unknown = lines_of(site_at(place, 0, tmp_path, server="no-such-host.invalid:9092"))
    assert not unknown["DNS"].holds
    assert "check the name in --server" in unknown["DNS"].text
    with serving(Link) as port:
        found = lines_of(site_at(place, port, tmp_path))
        assert (found["port"].holds, found["TLS"].holds, found["CA"].holds) == (True, False, None)
        assert "does not speak TLS" in found["TLS"].text
        insecure = lines_of(site_at(place, port, tmp_path, ca=None, key=None, roster=None))
        assert all(insecure[what].holds for what in ("TLS", "CA", "clock", "key"))


def test_a_middleman_of_ones_own_network_is_named(place, tmp_path):
    other = make_server_certificate(tmp_path / "other", [])
    with serving(Link, tls(other)) as port:
        found = lines_of(site_at(place, port, tmp_path))
        assert "'fedssl CA of localhost' is your own network's" in found["CA"].text
        assert "have 127.0.0.1 exempted there, or give its certificate with --ca" in found["CA"].text
        assert "not tried whether the server knows it" in found["key"].text
        rubbish = lines_of(site_at(place, port, tmp_path, ca=Path(__file__)))
        assert "no certificates: ask the server's operator" in rubbish["CA"].text


@pytest.mark.parametrize(
    ("date", "holds", "text"),
    [
        ("Wed, 01 Jan 2020 00:00:00 GMT", False, "ahead of the server's: set it by NTP"),
        ("Wed, 01 Jan 2120 00:00:00 GMT", False, "behind the server's: set it by NTP"),
        ("noon", False, "gives no time: is it a fedssl server?"),
    ],
)
def test_a_clock_that_a_server_would_not_take(place, tmp_path, date, holds, text):
    with serving(type("Other", (Link,), {"date": date}), tls(place[1])) as port:
        found = lines_of(site_at(place, port, tmp_path))
    assert found["clock"].holds is holds
    assert text in found["clock"].text
    assert "not tried" in found["key"].text


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (412, json.dumps({"code": 2004, "detail": "refused"}), "the server does not know it"),
        (401, "Unauthorized", "is the clock right"),
        (404, "", "no fedssl server there, or a proxy before it"),
        (502, "<html>", "a proxy before the server answers 502"),
    ],
)
def test_a_key_that_the_server_refuses(place, tmp_path, status, body, text):
    refusing = type("Refusing", (Link,), {"refusal": status, "body": body.encode()})
    with serving(refusing, tls(place[1])) as port:
        found = lines_of(site_at(place, port, tmp_path))
    assert found["clock"].holds
    assert not found["key"].holds
    assert text in found["key"].text


def test_a_key_that_others_can_read_and_a_state_of_another_client(place, tmp_path):
    key = tmp_path / "north.key"
    key.write_bytes((place[0] / "keys/north.key").read_bytes())
    key.chmod(0o644)
    lines_of(site_at(place, free_port(), tmp_path, name="south"))
    found = lines_of(site_at(place, free_port(), tmp_path, key=key, data=""))
    assert f"chmod 600 {key}" in found["key"].text
    assert "holds the state of 'south'" in found["disk"].text
    assert found["images"].holds


def test_through_a_proxy_and_what_it_refuses(place, tmp_path, monkeypatch):
    with serving(Link, tls(place[1])) as port:
        handler, _ = make_proxy(port)
        with serving(handler) as by:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{by}")
            found = lines_of(site_at(place, port, tmp_path, server=f"fl.example.org:{port}"))
            assert all(found[what].holds for what in ("DNS", "port", "TLS", "CA", "clock", "key"))
            assert f"through the proxy 127.0.0.1:{by}" in found["port"].text
            assert "secret" not in str([str(line) for line in found.values()])
            refused = lines_of(site_at(place, port, tmp_path, server="fl.example.org:1"))
    assert "many proxies let port 443 through only" in refused["port"].text


def test_a_proxy_that_asks_for_a_password_is_said_how_to_give_it(place, tmp_path, monkeypatch):
    with serving(make_proxy(1, known=True)[0]) as by:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{by}")
        found = lines_of(site_at(place, 1, tmp_path, server="fl.example.org:1"))
    assert found["port"].text.endswith("say who you are: HTTPS_PROXY=http://NAME:PASSWORD@…")


def test_a_policy_is_read_and_what_it_needs_is_asked_for(place, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(policy_text())
    closed = free_port()
    assert "approval ask" in lines_of(site_at(place, closed, tmp_path), path)["policy"].text
    without = lines_of(site_at(place, closed, tmp_path, roster=None), path)
    assert "require_secure_aggregation needs --roster" in without["policy"].text
    path.write_text("max_rounds = -1")
    assert not lines_of(site_at(place, closed, tmp_path), path)["policy"].holds
