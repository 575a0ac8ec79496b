"""`fedssl watch`: a page that updates itself, of runs that go on or are over; it reads their folders, writes nothing.

It listens on this machine alone, unless somebody names a host and a token. Nothing that a client says is code here:
every text is escaped, and the browser is told to run no script but the one that comes from this server.
"""

import hmac
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from fedssl import __version__
from fedssl.core.errors import FedsslError
from fedssl.reports.page import Figure, templates
from fedssl.reports.watched import RunNow, Watched

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FRESH = 1.0  # seconds for which an answer serves every browser
TOKEN_LETTERS = 16  # at least
COOKIE = "fedssl-watch"
HEADERS = {
    # Styles may stand in the page: drawings have them on every line. Scripts may not.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Shown:
    """A run and its curves."""

    now: RunNow
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class WatchPage:
    """What the template of the page gets."""

    title: str  # of the window, with the rounds that are done
    runs: Sequence[Shown]
    version: str = __version__
    story: tuple[str, ...] = ()


class Board:
    """All runs of a page; one browser or ten, they are read once a second at most."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = [Watched(folder, f"run{number}") for number, folder in enumerate(folders, 1)]
        self._lock, self._seen, self._page = threading.Lock(), float("-inf"), WatchPage("", ())

    def look(self) -> WatchPage:
        with self._lock:  # drawing is not for several threads
            if time.monotonic() - self._seen > FRESH:
                shown = [Shown(run.look(), run.figures()) for run in self.runs]
                self._page, self._seen = WatchPage(_title([one.now for one in shown]), shown), time.monotonic()
            return self._page

    def html(self) -> str:
        return templates().get_template("watch.html").render(page=self.look())

    def changes(self, have: frozenset[str]) -> dict[str, Any]:
        """Every part of the page whose digest the browser does not name."""
        page = self.look()
        macros: Any = templates().get_template("watch_parts.html").module
        parts = {f"{one.now.id}-now": str(macros.now(one.now)) for one in page.runs}
        parts |= {f"{one.now.id}-figures": str(macros.figures(one.figures)) for one in page.runs}
        digests = {id_: sha256(f"{id_} {html}".encode()).hexdigest()[:16] for id_, html in parts.items()}
        new = {id_: {"html": parts[id_], "digest": one} for id_, one in digests.items() if one not in have}
        return {"title": page.title, "parts": new}


def _title(runs: Sequence[RunNow]) -> str:
    listed = [f"{run.name} {run.done}/{run.rounds}" for run in runs]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


class _Handler(BaseHTTPRequestHandler):
    server: "WatchServer"
    server_version, sys_version = "fedssl", ""
    timeout = 30.0  # seconds for a request to arrive

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self._at_home():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "this name is not one of this server's")
        elif self.server.token and self._is(query.get("token", [""])[0]) and url.path == "/":
            self._send(HTTPStatus.SEE_OTHER, "text/plain", "", {"Location": "./", "Set-Cookie": self._cookie()})
        elif self.server.token and not self._known():
            self._send(
                HTTPStatus.UNAUTHORIZED, "text/plain", "open this page with ?token=… as `fedssl watch` was given"
            )
        elif url.path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.board.html())
        elif url.path == "/now.json":
            have = frozenset(query.get("have", [""])[0].split(","))
            self._send(HTTPStatus.OK, "application/json", json.dumps(self.server.board.changes(have)))
        elif url.path == "/watch.js":
            self._send(HTTPStatus.OK, "text/javascript", self.server.script)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page")

    do_HEAD = do_GET  # noqa: N815 - by this name it is called

    def _at_home(self) -> bool:
        """Without a token only by a name of this machine: no page may reach it under a name of its own."""
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return bool(self.server.token) or name in LOOPBACK

    def _known(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.server.pass_.encode())

    def _is(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.server.token.encode())

    def _cookie(self) -> str:
        return f"{COOKIE}={self.server.pass_}; HttpOnly; SameSite=Strict; Path=/"

    def _send(self, status: HTTPStatus, kind: str, text: str, more: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads who asked; an address may be personal."""


class WatchServer(ThreadingHTTPServer):
    """Serves while its block is open; knows three addresses, GET and HEAD, and no file by name.

    >>> with WatchServer(["runs/x"], port=0) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[str | Path], *, host: str = "127.0.0.1", port: int = 0, token: str = "") -> None:
        if host not in LOOPBACK and not token:
            raise FedsslError(f"--host: {host}: others could read the page: give a --token, or leave --host out")
        if token and (len(token) < TOKEN_LETTERS or not token.isascii() or not token.isalnum()):
            raise FedsslError(f"--token: give {TOKEN_LETTERS} or more letters and digits")
        missing = [str(run) for run in runs if not Path(run).is_dir()]
        if missing:
            raise FedsslError(f"{missing[0]}: there is no such folder: name run folders")
        self.board, self.token = Board([Path(run) for run in runs]), token
        self.pass_ = sha256(f"cookie {token}".encode()).hexdigest()  # not the token itself: a cookie lies on a disk
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise FedsslError(f"--port: {host}:{port}: cannot listen there ({error}): name another") from None

    @property
    def url(self) -> str:
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}/"

    @cached_property
    def script(self) -> str:
        return (resources.files("fedssl.reports") / "templates" / "watch.js").read_text(encoding="utf-8")

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="watch", daemon=True).start()
        return self

    def __exit__(self, *details: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle of an answer is no news."""
