"""Processes of Flower's that are started, watched and ended with us; what they say goes to a file."""

import contextlib
import os
import re
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil

from fedssl.core.errors import FedsslError, RoundError, safe_text
from fedssl.core.progress import Say
from fedssl.deployment.network import connect, without_proxy

MARK = "FEDSSL_STARTED"
END_LIMIT = 15.0  # seconds to end by itself
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Child:
    """A process and the file with its output."""

    process: "subprocess.Popen[bytes]"
    log: Path
    begun: int  # where in the file its own output starts
    mark: str  # in the environment of all that it started

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self.begun)
            return file.read().decode(errors="replace")

    def last_lines(self, lines: int = 3) -> str:
        """For a terminal: a log may hold texts of others."""
        printed = [line.strip() for line in COLOURS.sub("", self.output()).splitlines() if line.strip()]
        return " / ".join(map(safe_text, printed[-lines:]))

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Flower's apps notice that their node was killed, but may wait for it for ever before they end.
        for process in marked(self.mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def running(command: list[str], log: Path, home: Path, *here: str) -> Iterator[Child]:
    """Starts a command; leaving the block ends it. `here`: other names of this machine than the usual."""
    with log.open("ab") as output:
        begun = log.stat().st_size
        mark = uuid.uuid4().hex
        nothing, env = subprocess.DEVNULL, environment(home, *here) | {MARK: mark}
        process = subprocess.Popen(command, stdin=nothing, stdout=output, stderr=output, env=env)
    child = Child(process, log, begun, mark)
    try:
        yield child
    finally:
        child.end()


def marked(mark: str) -> list[psutil.Process]:
    """The processes that were started, by whomever, with this mark in their environment."""
    return [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get(MARK) == mark]


def module(name: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", name, *map(str, arguments)]


def environment(home: Path, *here: str) -> dict[str, str]:
    """Ours, with Flower's own files in `home`, no telemetry, its commands found where this Python has its own, and no
    proxy between processes of this machine."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    changed = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds until an app starts; 1 if nothing is said
        "PATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | changed | without_proxy(*here)


def split_address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise FedsslError(f"{text!r}: expected an address such as server.example.org:9092")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_insecure(host: str, forced: bool) -> None:
    """Without encryption only what never leaves the machine, unless somebody insists."""
    if not is_loopback(host) and not forced:
        raise FedsslError(
            f"--insecure: {host} is not this machine: everybody on the way could read and change the weights. Use TLS "
            "(fedssl certificates), or insist with --insecure-anywhere"
        )


def reachable(host: str, port: int, ca: Path | None, *, proxy: str = "", timeout: float = 10.0) -> str:
    """ "" when a server answers that `ca` vouches for, else why not yet; a wrong certificate is an error at once."""
    try:
        with connect(host, port, timeout, proxy) as plain:
            if ca is None:
                return ""
            with ssl.create_default_context(cafile=str(ca)).wrap_socket(plain, server_hostname=host):
                return ""
    except ssl.SSLCertVerificationError as error:
        raise FedsslError(
            f"{host}:{port}: its certificate is refused: {error.verify_message} (checked against {ca}); "
            "ask the server's operator for the right ca.pem, or for a new certificate"
        ) from None
    except ssl.SSLError as error:
        raise FedsslError(f"{host}:{port}: does not speak TLS as expected: {error.reason}") from None
    except OSError as error:
        return error.strerror or str(error)


class Patience:
    """A bounded wait that says, now and then, who is awaited, why, and for how long still."""

    def __init__(self, limit: float, say: Say, every: float = 15.0) -> None:
        self.limit, self.say, self.every = limit, say, every
        self.begun, self.spoken = time.monotonic(), float("-inf")

    def wait(self, what: str, pause: float = 1.0) -> None:
        """Sleeps a little; RoundError when the limit is reached."""
        waited = time.monotonic() - self.begun
        if waited > self.limit:
            raise RoundError(f"{what}: given up after {waited:.0f} s")
        if time.monotonic() - self.spoken > self.every:
            self.spoken = time.monotonic()
            self.say(f"{what} ({waited:.0f} of {self.limit:g} s)")
        time.sleep(pause)

    def renew(self) -> None:
        self.begun, self.spoken = time.monotonic(), float("-inf")
