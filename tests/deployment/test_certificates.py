"""Certificates and keys: made once, kept secret, and refused when they are wrong."""

import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fedssl.core.errors import FedsslError
from fedssl.deployment import certificates
from fedssl.deployment.certificates import (
    ServerCertificate,
    check_server_certificate,
    days_left,
    make_node_key,
    make_server_certificate,
    public_keys,
)
from fedssl.deployment.server_run import key_bytes
from fedssl.deployment.supervision import reachable
from tests.deployment.test_supervision import listening


@contextmanager
def tls_server(made):
    """Shakes hands and hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with listening() as server:

        def serve():
            while True:
                try:
                    plain, _ = server.accept()
                    context.wrap_socket(plain, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_server_with_a_certificate_of_our_ca_is_believed(tmp_path):
    made = make_server_certificate(tmp_path, ["fl.example.org", "10.0.0.7"])
    check_server_certificate(made)
    assert 390 < days_left(made.certificate) <= 397
    with tls_server(made) as port:
        assert reachable("127.0.0.1", port, made.ca) == ""
        assert reachable("localhost", port, made.ca) == ""


def test_private_keys_are_readable_by_their_owner_only_and_nothing_is_overwritten(tmp_path):
    made = make_server_certificate(tmp_path, [])
    private, public = make_node_key(tmp_path, "north")
    for path in (made.key, tmp_path / "ca.key", private):
        assert path.stat().st_mode & 0o077 == 0
    before = made.ca.read_bytes()
    with pytest.raises(FedsslError, match=r"ca\.pem: is there already"):
        make_server_certificate(tmp_path, [])
    with pytest.raises(FedsslError, match=r"north\.key: is there already"):
        make_node_key(tmp_path, "north")
    assert made.ca.read_bytes() == before
    assert len(key_bytes(public.read_bytes())) > 90


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".hidden", "", "a\nb", "a" * 65, "C:\\x"])
def test_a_key_is_made_for_a_name_and_not_for_a_path(tmp_path, name):
    with pytest.raises(FedsslError, match=r"NAME: .* is no name: letters, digits"):
        make_node_key(tmp_path / "keys", name)
    assert not [*tmp_path.rglob("*")]


def test_another_ca_is_refused_by_name(tmp_path):
    made, other = make_server_certificate(tmp_path / "a", []), make_server_certificate(tmp_path / "b", [])
    with (
        tls_server(made) as port,
        pytest.raises(FedsslError, match=rf"127\.0\.0\.1:{port}: its certificate is refused"),
    ):
        reachable("127.0.0.1", port, other.ca)
    with pytest.raises(FedsslError, match=r"server\.pem: is not signed by"):
        check_server_certificate(ServerCertificate(other.ca, made.certificate, made.key))
    with pytest.raises(FedsslError, match="no certificate and its key"):
        check_server_certificate(ServerCertificate(made.ca, made.certificate, other.key))


def test_an_expired_certificate_is_refused_on_both_sides(tmp_path, monkeypatch):
    class LongAgo(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) - timedelta(days=30)

    monkeypatch.setattr(certificates, "datetime", LongAgo)
    made = make_server_certificate(tmp_path, [], days=2)
    monkeypatch.undo()
    with pytest.raises(FedsslError, match=rf"ca\.pem: expired on {datetime.now(UTC) - timedelta(days=28):%Y-%m-%d}"):
        check_server_certificate(made)
    with tls_server(made) as port, pytest.raises(FedsslError, match="expired"):
        reachable("127.0.0.1", port, made.ca)


def test_a_server_for_another_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "LOOPBACK", ())
    made = make_server_certificate(tmp_path, ["fl.example.org"])
    with tls_server(made) as port, pytest.raises(FedsslError, match="its certificate is refused"):
        reachable("127.0.0.1", port, made.ca)


def test_missing_files_and_keys_are_named(tmp_path):
    nothing = ServerCertificate(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key")
    with pytest.raises(FedsslError, match=r"ca\.pem: there is no such file"):
        check_server_certificate(nothing)
    make_node_key(tmp_path, "north")
    with pytest.raises(FedsslError, match=r"south\.pub.*west\.pub: missing"):
        public_keys(tmp_path, ["north", "south", "west"])
    assert public_keys(tmp_path, ["north"]) == {"north": tmp_path / "north.pub"}
