"""The way to a server as Flower's own connections take it: directly, or through the proxy that HTTPS_PROXY names."""

import base64
import http.client
import os
import socket
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from fedssl.core.errors import FedsslError, safe_text

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # names of this machine, for itself: never by way of a proxy


def proxy_for(host: str, *, tls: bool = True) -> str:
    """The proxy on the way to `host`, "" for none.

    >>> proxy_for("127.0.0.1")
    ''
    """
    if host in LOOPBACK or proxy_bypass(host):
        return ""
    proxies = getproxies()
    return proxies.get("https" if tls else "http") or proxies.get("all", "")


def without_proxy(*hosts: str) -> dict[str, str]:
    """Environment variables that keep connections to this machine, and to these hosts, off every proxy."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    listed = ",".join(dict.fromkeys(filter(None, (*given.split(","), *LOOPBACK, *hosts))))
    return {"NO_PROXY": listed, "no_proxy": listed}  # of the two, some programs read only one


def connect(host: str, port: int, timeout: float, proxy: str = "") -> socket.socket:
    """A connection to a server; OSError says why there is none."""
    if not proxy:
        return socket.create_connection((host, port), timeout)
    try:
        parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        at, by = parts.hostname, parts.port or 80
    except ValueError:
        at, by = None, 0
    if not at or parts.scheme != "http":
        raise FedsslError("HTTPS_PROXY: expected an address such as http://proxy.example.org:3128")
    headers = {}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    tunnel = http.client.HTTPConnection(at, by, timeout=timeout)
    tunnel.set_tunnel(host, port, headers)
    try:
        tunnel.connect()
    except (OSError, http.client.HTTPException) as error:
        tunnel.close()
        why = safe_text(str(getattr(error, "strerror", None) or error))
        raise OSError(f"the proxy {at}:{by}: {why}") from None
    return tunnel.sock
