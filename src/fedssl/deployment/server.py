"""`fedssl server`: Flower's SuperLink and the run, supervised: whichever of them dies is started again and resumes."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tomli_w
from filelock import FileLock, Timeout

from fedssl.core.checksums import signed_json
from fedssl.core.errors import DamagedError, FedsslError, RoundError, StorageError
from fedssl.core.files import write_atomically
from fedssl.core.lines import Tail
from fedssl.core.progress import Say
from fedssl.deployment import APP
from fedssl.deployment.certificates import ServerCertificate, check_server_certificate, days_left, open_key
from fedssl.deployment.server_run import APP_PID, DEPLOYMENT, ERROR, PROGRESS, SETTINGS
from fedssl.deployment.superlink import BEHIND_PROXY
from fedssl.deployment.supervision import Child, Patience, environment, module, reachable, refuse_insecure, running
from fedssl.experiment.config.schema import Config
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import read_json
from fedssl.experiment.resume import finished

LINK = "fedssl.deployment.superlink"
CONNECTION = "fedssl"
START_LIMIT = 120.0  # seconds for the SuperLink to answer, and for the app to start
RESTARTS = 5  # in a row, without a round in between
COMMAND_LIMIT = 120.0
RENEWAL = 30  # days before the end of a certificate at which it is said


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a server is started with."""

    config: Config
    folder: Path
    host: str
    port: int
    certificate: ServerCertificate | None  # None: no TLS
    keys: dict[str, Path]  # the clients' public keys; empty without TLS
    insecure_anywhere: bool = False
    behind_proxy: bool = False  # one that ends TLS: all nodes come through it
    force: bool = False

    @property
    def home(self) -> Path:
        return RunFolder(self.folder.absolute()).flower

    def check(self) -> None:
        names = self.config.flower.clients
        if not names or len(set(names)) != len(names):
            raise FedsslError("flower.clients: name every client of the deployment once, e.g. --clients north,south")
        if self.config.automatic:  # those of the weights to start from are chosen by now
            raise FedsslError(
                f"{self.config.automatic[0]}: 'auto' needs the images, which are at the sites: give a number"
            )
        if self.certificate is None:
            refuse_insecure(self.host, self.insecure_anywhere)
            if self.config.uploads.secure:
                raise FedsslError("--insecure: with aggregation.secure sites sign with their keys: use TLS and keys")
        else:
            check_server_certificate(self.certificate)

    def link(self) -> list[str]:
        """The SuperLink: apps in processes of their own, and nothing installed at run time.

        Its database stays in memory: in a file, two large uploads at once end in "database is locked", and there is
        nothing in it to lose. Keys are registered anew at every start, tasks are sent again.
        """
        security: list[str | Path] = ["--insecure"]
        if self.certificate is not None:
            files = self.certificate
            security = ["--ssl-ca-certfile", files.ca, "--ssl-certfile", files.certificate, "--ssl-keyfile", files.key]
            security.append("--enable-supernode-auth")
        if self.behind_proxy:
            security.append(BEHIND_PROXY)
        place = ["--host", self.host, "--port", str(self.port)]
        return module(LINK, *place, *security, "--disable-runtime-dependency-installation")

    @property
    def local_host(self) -> str:
        """How this machine itself reaches the SuperLink."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "127.0.0.1", "localhost") else self.host


def serve(deployment: Deployment, say: Say) -> dict[str, Any]:
    """Runs a deployment to its end and returns the summary; FedsslError with the run's own exit code if it fails."""
    deployment.check()
    folder = RunFolder.create(deployment.folder)
    if summary := finished(folder.path, deployment.config.run.rounds, say):
        say(f"{folder.path}: this run is finished, nothing is left to do")
        return summary
    deployment.home.mkdir(exist_ok=True)
    with _alone(deployment):
        _write_down(deployment)
        return _Server(deployment, say).run()


@contextmanager
def _alone(deployment: Deployment) -> Iterator[None]:
    try:
        held = FileLock(deployment.home / ".lock").acquire(timeout=0)
    except Timeout:
        raise FedsslError(f"{deployment.folder}: another `fedssl server` runs this deployment") from None
    with held:
        yield


def _write_down(deployment: Deployment) -> None:
    """What the server's app reads, and what names the run to the clients for as long as its folder exists."""
    path = deployment.home / DEPLOYMENT
    run = read_json(path)["run"] if path.exists() else uuid.uuid4().hex
    keys = {name: key.read_text(encoding="utf-8") for name, key in deployment.keys.items()}
    write_atomically(path, signed_json(json.dumps({"run": run, "keys": keys, "force": deployment.force}, indent=1)))
    write_atomically(deployment.home / SETTINGS, deployment.config.as_toml())
    certificate = deployment.certificate
    security = {"root-certificates": str(certificate.ca.absolute())} if certificate else {"insecure": True}
    address = f"{deployment.local_host}:{deployment.port}"
    connection = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **security}}}
    write_atomically(deployment.home / "config.toml", tomli_w.dumps(connection))


class _Server:
    """The supervisor: a SuperLink, an app on it, and what they write is shown."""

    def __init__(self, deployment: Deployment, say: Say) -> None:
        self.deployment, self.say, self.home = deployment, say, deployment.home
        self.shown = Tail(self.home / PROGRESS, from_end=True)
        self.restarts, self.rounds = 0, -1

    def run(self) -> dict[str, Any]:
        deployment, certificate = self.deployment, self.deployment.certificate
        if certificate and days_left(certificate.certificate) < RENEWAL:
            self.say(f"warning: {certificate.certificate} ends in {days_left(certificate.certificate)} days")
        if certificate and (opened := open_key(certificate.key)):
            self.say(f"warning: {opened}")
        while True:
            with running(deployment.link(), self.home / "superlink.log", self.home, deployment.local_host) as link:
                self._await_link(link)
                self._register()
                summary = self._run_app(link)
                if summary:
                    return summary
            self._count_restart(f"the SuperLink ended with code {link.process.returncode} ({link.last_lines()})")

    def _await_link(self, link: Child) -> None:
        patience = Patience(START_LIMIT, self.say)
        deployment = self.deployment
        ca = deployment.certificate.ca if deployment.certificate else None
        while why := reachable(deployment.local_host, deployment.port, ca):
            if link.ended:
                raise FedsslError(
                    f"the SuperLink cannot start on {deployment.host}:{deployment.port}: {link.last_lines()}; "
                    f"its log is {link.log}"
                )
            patience.wait(f"waiting for the SuperLink: {why}", pause=0.3)
        self.say(f"listening on {deployment.host}:{deployment.port}, {'TLS' if ca else 'NOT ENCRYPTED'}")

    def _register(self) -> None:
        """Registers the clients' keys; one that is known already stays as it is."""
        for name, key in self.deployment.keys.items():
            done = self._flwr("supernode", "register", str(key.absolute()), CONNECTION, "--name", name)
            if done.returncode and "already" not in done.stdout.lower():
                raise FedsslError(f"{key}: the SuperLink refused this key: {_last_line(done.stdout)}")

    def _run_app(self, link: Child) -> dict[str, Any] | None:
        """Submits the run, again if its app dies, until it is done (the summary) or the SuperLink is gone (None)."""
        while not link.ended:
            for name in (ERROR, APP_PID):
                (self.home / name).unlink(missing_ok=True)
            folder = json.dumps(str(self.deployment.folder.absolute()))
            done = self._flwr("run", str(APP), CONNECTION, "--run-config", f"folder={folder}")
            if done.returncode:
                if link.ended:
                    return None
                raise FedsslError(f"the SuperLink refused the run: {_last_line(done.stdout)}")
            if (summary := self._watch(link)) is not None:
                return summary
            if not link.ended:
                self._count_restart("the server's app ended")
        return None

    def _watch(self, link: Child) -> dict[str, Any] | None:
        """Shows what happens; returns when the app is done, dead, or without its SuperLink."""
        patience = Patience(START_LIMIT, self.say, every=60.0)
        while not link.ended:
            self._show()
            pid = _read_pid(self.home / APP_PID)
            if pid is None:
                patience.wait("waiting for the server's app to start")
                continue
            if not _alive(pid):
                self._show()
                return finished(self.deployment.folder, self.deployment.config.run.rounds, self.say)
            time.sleep(0.5)
        return None

    def _show(self) -> None:
        """What the app wrote since, and the error that it ended with, if any."""
        failed = (self.home / ERROR).exists()  # looked at first: what was written before it is shown
        for line in self.shown.new():
            self.say(line.decode(errors="replace"))
        if failed:
            what = read_json(self.home / ERROR)
            kinds = {kind.exit_code: kind for kind in (FedsslError, DamagedError, RoundError, StorageError)}
            raise kinds.get(what.get("exit_code", 2), FedsslError)(str(what.get("error")))

    def _count_restart(self, why: str) -> None:
        done = len(RunFolder(self.deployment.folder).written_rounds())
        self.restarts = 1 if done > self.rounds else self.restarts + 1
        self.rounds = done
        if self.restarts > RESTARTS:
            raise RoundError(f"{why}; {RESTARTS} times in a row without a round: see {self.home / 'superlink.log'}")
        self.say(f"warning: {why}: started again ({self.restarts} of {RESTARTS})")
        time.sleep(min(2.0**self.restarts, 30.0))

    def _flwr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Flower's own command, with the connection in our folder."""
        command = [str(Path(sys.executable).with_name("flwr")), *arguments]
        try:
            return subprocess.run(
                command,
                env=environment(self.home, self.deployment.local_host),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RoundError(
                f"`flwr {arguments[0]}` did not end within {COMMAND_LIMIT:g} s: see {self.home / 'superlink.log'}"
            ) from None
        except OSError as error:
            raise FedsslError(
                f"{command[0]}: cannot be started ({error.strerror}); install fedssl[flower] in this environment"
            ) from None


def _last_line(text: str) -> str:
    lines = [line.strip(" │╭╰─╮╯") for line in text.splitlines()]
    return " / ".join([line for line in lines if line][-3:])


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _alive(pid: int) -> bool:
    """A process that ended but was not waited for is dead, too."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
