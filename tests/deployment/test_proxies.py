"""A deployment through Debian's nginx and tinyproxy, with the nginx.conf of the examples; `make check-proxies`."""

import contextlib
import re
import shutil
import ssl
import subprocess
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from fedssl.deployment.certificates import make_server_certificate
from fedssl.deployment.supervision import reachable
from tests.helpers.deployed import LIMIT, Federation, free_port

pytestmark = pytest.mark.proxies
OUTSIDE = "127.0.0.2"  # of this machine, and yet no name that clients take for it: they ask their proxy
EXAMPLE = Path(__file__).parents[2] / "examples/deployment/nginx.conf"
NGINX = """pid {place}/nginx.pid;
error_log {place}/error.log;
daemon off;
events {{}}
http {{
  access_log {place}/access.log;
  {temporary}
  include {place}/example.conf;
}}
"""
TINYPROXY = """Port {port}
Listen 127.0.0.1
Timeout 600
LogFile "{place}/tinyproxy.log"
LogLevel Connect
MaxClients 50
Allow 127.0.0.1
ConnectPort {allowed}
"""


def program(name):
    """Where it is; a machine without it cannot run these tests, and says so."""
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert found, f"{name} is not here: install it (Debian: apt install nginx tinyproxy)"
    return found


@contextlib.contextmanager
def started(*command):
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def example_at(federation, place, port, company):
    """nginx.conf of the examples; only what names places of a machine is that of this one."""
    text = EXAMPLE.read_text()
    for there, here in {
        "listen 443 ssl": f"listen {OUTSIDE}:{port} ssl",
        "https://127.0.0.1:9092": f"https://127.0.0.1:{federation.port}",
        "/etc/fedssl/fl.example.org.pem": str(company.certificate),
        "/etc/fedssl/fl.example.org.key": str(company.key),
        "/etc/fedssl/certificates/ca.pem": str(federation.folder / "server/certificates/ca.pem"),
    }.items():
        assert text.count(there) == 1
        text = text.replace(there, here)
    (place / "example.conf").write_text(text)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    (place / "nginx.conf").write_text(NGINX.format(place=place, temporary=temporary))
    return place / "nginx.conf"


def test_clients_of_a_proxy_reach_a_server_behind_nginx_and_nothing_else(tmp_path):
    place, outside, proxy = tmp_path / "proxies", free_port(), free_port()
    place.mkdir()
    company = make_server_certificate(place / "company", [OUTSIDE])
    with contextlib.ExitStack() as stack:
        federation = stack.enter_context(Federation(tmp_path, rounds=2))
        conf = example_at(federation, place, outside, company)
        stack.enter_context(started(program("nginx"), "-c", conf, "-e", place / "error.log"))
        (place / "tinyproxy.conf").write_text(TINYPROXY.format(place=place, port=proxy, allowed=outside))
        stack.enter_context(started(program("tinyproxy"), "-d", "-c", place / "tinyproxy.conf"))
        by = f"http://127.0.0.1:{proxy}"
        federation.wait("nginx", lambda: not reachable(OUTSIDE, outside, company.ca, proxy=by))
        trusted = ssl.create_default_context(cafile=str(company.ca))
        server = federation.server("--behind-proxy")
        federation.wait("the server", lambda: "listening on" in federation.output("server"))
        direct = federation.client("hospital-a", "--wait", "8", machine="direct", key=key_of(federation, "hospital-a"))
        assert direct.wait(LIMIT) == 4, "past nginx nobody gets in"
        assert "404" in federation.output("direct")
        way = {"server": f"{OUTSIDE}:{outside}", "ca": company.ca}
        environment = {"HTTPS_PROXY": by, "HTTP_PROXY": by}
        for name in federation.names:
            federation.client(name, environment=environment, **way)
        for path in ("/v1/control/list-runs", "/v1/runtime/get-nodes", "/v1/fleet/../control/list-runs"):
            asked = HTTPSConnection(OUTSIDE, outside, context=trusted, timeout=30)
            asked.connect()
            assert asked.sock.version() == "TLSv1.3"
            asked.request("POST", path, headers={"Content-Type": "application/x-protobuf"})
            assert asked.getresponse().status == 404, path
        assert server.wait(LIMIT) == 0, federation.story()
        assert federation.everything() == federation.in_one_process()

        seen = re.findall(r'"(\w+) (\S+) HTTP/[\d.]+" (\d+)', (place / "access.log").read_text())
        assert {path.rpartition("/")[0] for _, path, status in seen if status == "200"} == {"/v1/fleet"}
        assert ("POST", "/v1/fleet/pull-messages", "200") in seen
        assert f"CONNECT {OUTSIDE}:{outside}" in (place / "tinyproxy.log").read_text()


def key_of(federation, name):
    return federation.folder / name / "keys" / f"{name}.key"
