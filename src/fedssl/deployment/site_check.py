"""`fedssl client check`: whether a site can take part, one line for each thing that it needs, with the remedy."""

import os
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from cryptography import x509

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.files import size_text
from fedssl.data.own.layouts import find_images
from fedssl.deployment.certificates import open_key
from fedssl.deployment.network import connect, proxy_for, without_proxy
from fedssl.deployment.policy import load_policy
from fedssl.deployment.site import Site, about_roster
from fedssl.deployment.site_folder import claim_state
from fedssl.deployment.supervision import split_address

LIMIT = 10.0  # seconds for the server to answer
LEAST_FREE = 2e9  # bytes: a client of the paper's network takes 0.7 GB, and its images are decoded once
AHEAD, BEHIND = 5.0, 300.0  # seconds by which Flower lets the clock of a node differ


@dataclass(frozen=True)
class Line:
    """What was looked at, whether it holds (None: it could not be tried), and what was found."""

    what: str
    holds: bool | None
    text: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'NO', None: '–'}[self.holds]:3} {self.what:7} {self.text}"


def check_site(site: Site, policy: Path | None = None) -> Iterator[Line]:
    """One line after the other, as soon as it is known; `policy` is the file with this site's, if it has one."""
    way, reached = _Way(site), True
    steps = (("DNS", way.name), ("port", way.port), ("TLS", way.tls), ("CA", way.ca), ("clock", way.clock))
    for what, look in steps:
        line = _looked(what, look) if reached else Line(what, None, "not tried: see above")
        reached = reached and bool(line.holds)
        yield line
    yield _looked("key", lambda: _key(site, ask=reached))
    if (roster := site.roster) is not None:
        yield _looked("roster", lambda: about_roster(roster, site.name))
    yield _looked("disk", lambda: _disk(site))
    yield _looked("images", lambda: _images(site.data))
    yield _looked("policy", lambda: _policy(policy, site.roster))


def _looked(what: str, look: Callable[[], str]) -> Line:
    try:
        return Line(what, True, look())
    except FedsslError as error:
        return Line(what, False, str(error))


class _Way:
    """The way to the server, step by step; every step is a connection of its own."""

    def __init__(self, site: Site) -> None:
        self.site, (self.host, self.number) = site, split_address(site.server)
        self.proxy = proxy_for(self.host, tls=site.ca is not None)
        self.shown = self.proxy.rpartition("@")[2].removeprefix("http://")  # without the password
        self.through = f" through the proxy {self.shown}" if self.proxy else ""

    def name(self) -> str:
        if self.proxy:
            return f"{self.host} is looked up by the proxy {self.shown} (HTTPS_PROXY)"
        try:
            addresses = socket.getaddrinfo(self.host, self.number, type=socket.SOCK_STREAM)
        except OSError:
            raise FedsslError(
                f"{self.host} has no address here: check the name in --server; if a proxy knows it, set HTTPS_PROXY"
            ) from None
        return f"{self.host} is {', '.join(dict.fromkeys(str(one[4][0]) for one in addresses))}"

    def port(self) -> str:
        self._connected().close()
        return f"{self.site.server} answers{self.through}"

    def tls(self) -> str:
        if self.site.ca is None:
            return "none: --insecure"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # who it is comes next
        with self._shaken(context) as connection:
            shown = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
            self.issuer = _common_name(shown.issuer)
            until = f"{shown.not_valid_after_utc:%Y-%m-%d}"
            return f"{connection.version()}; a certificate by {self.issuer!r}, good until {until}"

    def ca(self) -> str:
        if self.site.ca is None:
            return "none: --insecure"
        try:
            self._verified().close()
        except ssl.SSLCertVerificationError as error:
            raise FedsslError(
                f"{self.site.ca} does not vouch for the server ({error.verify_message}): ask its operator for ca.pem; "
                f"if {self.issuer!r} is your own network's, which decrypts what passes: have {self.host} exempted "
                "there, or give its certificate with --ca"
            ) from None
        return f"{self.site.ca} vouches for the server"

    def clock(self) -> str:
        connection = HTTPConnection(self.host, self.number)
        connection.sock = self._connected() if self.site.ca is None else self._verified()
        before = datetime.now(UTC)
        try:
            connection.request("HEAD", "/v1/fleet/")
            theirs = parsedate_to_datetime(connection.getresponse().getheader("Date") or "")
        except (OSError, HTTPException, ValueError, TypeError):
            raise FedsslError(f"{self.site.server} gives no time: is it a fedssl server?") from None
        finally:
            connection.close()
        # The answer may take long: what it says is wrong only if it was not the time at any instant since.
        ahead = max((before - theirs).total_seconds(), 0.0) + min((datetime.now(UTC) - theirs).total_seconds(), 0.0)
        differs = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        if not -BEHIND < ahead < AHEAD:
            raise FedsslError(f"this machine's clock is {differs}: set it by NTP, or the server refuses this site")
        return differs

    def _connected(self) -> socket.socket:
        try:
            return connect(self.host, self.number, LIMIT, self.proxy)
        except OSError as error:
            remedy = "is `fedssl server` running, and may this machine connect there? A proxy is named by HTTPS_PROXY"
            if self.proxy:
                remedy = "many proxies let port 443 through only: ask the server's operator to listen there"
                if " 407 " in str(error):
                    remedy = "say who you are: HTTPS_PROXY=http://NAME:PASSWORD@…"
            raise FedsslError(f"{self.site.server}: {error.strerror or error}: {remedy}") from None

    def _verified(self) -> ssl.SSLSocket:
        assert self.site.ca is not None
        try:
            context = ssl.create_default_context(cafile=str(self.site.ca))
        except (OSError, ssl.SSLError):
            raise FedsslError(f"{self.site.ca}: no certificates: ask the server's operator for ca.pem") from None
        return self._shaken(context)

    def _shaken(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        plain = self._connected()
        try:
            return context.wrap_socket(plain, server_hostname=self.host)
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            plain.close()
            raise FedsslError(
                f"{self.site.server} does not speak TLS ({getattr(error, 'reason', None) or error.strerror or error}): "
                "check the port in --server"
            ) from None


def _common_name(name: x509.Name) -> str:
    names = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return safe_text(str(names[0].value) if names else name.rfc4514_string())


def _key(site: Site, ask: bool) -> str:
    if site.key is None:
        return "none: --insecure"
    from fedssl.federation.secure.keys import Identity

    if not site.key.is_file():
        raise FedsslError(f"{site.key}: there is no such file: make it with `fedssl certificates node {site.name}`")
    identity = Identity.read(site.key, site.name)
    if opened := open_key(site.key):
        raise FedsslError(opened)
    if not ask:
        return f"{site.key} can be used; not tried whether the server knows it"
    return f"{site.key}: {_introduce(site, identity.key)}"


def _introduce(site: Site, key: Any) -> str:
    """Comes to the server as this site's node does, and leaves at once."""
    import httpx
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    os.environ.update(without_proxy())
    public = public_key_to_bytes(key.public_key())
    signs: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    try:
        with FleetHttpClient.from_server_address(site.server, False, str(site.ca), interceptors=signs) as client:
            node = client.ActivateNode(request)
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
    except httpx.HTTPStatusError as error:
        raise FedsslError(f"{site.key}: {_refusal(error.response.status_code, error.response.text)}") from None
    except (httpx.HTTPError, RuntimeError) as error:
        raise FedsslError(f"{site.server}: did not answer as a fedssl server does ({safe_text(str(error))})") from None
    return "the server knows it"


def _refusal(status: int, text: str) -> str:
    from flwr.supercore.error import FlowerError

    if status in (502, 503, 504):
        return f"a proxy before the server answers {status}: it cannot reach it; ask the server's operator"
    if status == 404:
        return "404: no fedssl server there, or a proxy before it does not pass /v1/fleet/ on with X-Forwarded-For"
    if FlowerError.from_json(text):
        return "the server does not know it (give the .pub file to its operator), or this client is running already"
    return f"the server refuses it ({status}); is the clock right, and are the versions of fedssl the same?"


def _disk(site: Site) -> str:
    claim_state(site.state, site.name)
    free = shutil.disk_usage(site.state).free
    if free < LEAST_FREE:
        raise FedsslError(
            f"{site.state}: {size_text(free)} free, {size_text(LEAST_FREE)} are needed at least: make room"
        )
    return f"{site.state} can be written, {size_text(free)} free"


def _images(place: str) -> str:
    if not place:
        return "none given: right for runs with a shared dataset; others need --data"
    content = find_images(place, "--data", "auto", {"image": "", "label": "", "client": ""}, labels=False)
    count = len(content.samples)
    if count < 2:
        raise FedsslError(f"--data: {place}: {count} images: at least 2 are needed (fedssl data inspect)")
    return f"{count:,} in {place}; not decoded yet: `fedssl data inspect` does that"


def _policy(path: Path | None, roster: Path | None) -> str:
    if path is None:
        return "none given (--policy): what `fedssl client --help` says holds"
    policy = load_policy(path, {})
    if policy.require_secure_aggregation and roster is None:
        raise FedsslError(f"{path}: require_secure_aggregation needs --roster: see `fedssl certificates roster`")
    said = ", ".join(f"{field} {value}" for field, value in policy.as_node().items())
    return f"{path}: {said or 'nothing but the defaults'}"
