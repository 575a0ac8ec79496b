"""`fedssl client`: a node of Flower's at one site, supervised; it connects outwards only, and comes back by itself."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.extras import need
from fedssl.core.lines import Tail, whole_tables
from fedssl.core.progress import Say
from fedssl.deployment.certificates import open_key
from fedssl.deployment.network import proxy_for
from fedssl.deployment.policy import Policy
from fedssl.deployment.site_folder import LOG, Start, claim_state
from fedssl.deployment.supervision import (
    Child,
    Patience,
    module,
    reachable,
    refuse_insecure,
    running,
    split_address,
)

ACCEPTED = "SuperNode ID:"  # what a SuperNode says when the server took it
NODE = "fedssl.deployment.supernode"


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a client is started with; nothing of it is the server's to choose."""

    name: str
    server: str
    state: Path
    data: str = ""
    eval_train: str = ""  # labelled images of this site's own, to look at the global encoder with
    eval_test: str = ""
    ca: Path | None = None  # None: no TLS
    key: Path | None = None
    roster: Path | None = None  # the public keys of all sites, for secure aggregation
    device: str = ""
    allow_code: tuple[str, ...] = ()
    insecure_anywhere: bool = False
    accept_changed_data: bool = False  # images were withdrawn since: said by a person, and recorded
    policy: Policy = field(default_factory=Policy)

    def check(self) -> None:
        host, _ = split_address(self.server)
        if self.ca is None:
            refuse_insecure(host, self.insecure_anywhere)
        elif self.key is None:
            raise FedsslError("--key: with TLS a client shows its key: make one with `fedssl certificates node NAME`")
        for path in (self.ca, self.key, self.roster):
            if path is not None and not path.is_file():
                raise FedsslError(f"{path}: there is no such file")
        if self.policy.require_secure_aggregation and self.roster is None:
            raise FedsslError("--roster: give the keys of all sites: make it with `fedssl certificates roster`")
        for option, place in self._places().items():
            if place and not Path(place).exists():
                raise FedsslError(f"--{option}: {place}: there is no such folder or file")
        claim_state(self.state, self.name)

    def command(self) -> list[str]:
        ca, key = (str(path.absolute()) if path else "" for path in (self.ca, self.key))
        return module(NODE, Start(self.server, ca, key, self._node()).as_text())

    def _places(self) -> dict[str, str]:
        return {"data": self.data, "eval-train": self.eval_train, "eval-test": self.eval_test}

    def _node(self) -> dict[str, str]:
        given: dict[str, str | bool | Path | None] = {
            "name": self.name,
            "state": str(self.state.absolute()),
            **{name: place and str(Path(place).absolute()) for name, place in self._places().items()},
            "device": self.device,
            "key": self.roster and self.key and str(self.key.absolute()),
            "roster": self.roster and str(self.roster),
            "allow-code": ",".join(self.allow_code),
            "accept-changed-data": self.accept_changed_data and "yes",
            **self.policy.as_node(),
        }
        return {key: str(value) for key, value in given.items() if value}


def take_part(site: Site, say: Say, wait: float) -> None:
    """Until somebody stops it: connect, take part, and after a loss of any kind come back.

    Not being accepted for `wait` seconds on end is given up, with the reason.
    """
    site.check()
    host, port = split_address(site.server)
    patience, before = Patience(wait, say), ""
    if site.key is not None and (opened := open_key(site.key)):
        say(f"warning: {opened}")
    if site.roster is not None:
        say(f"{site.name}: {about_roster(site.roster, site.name)}")
    while True:
        why = reachable(host, port, site.ca, proxy=proxy_for(host, tls=site.ca is not None))
        if why:
            patience.wait(f"{site.name}: waiting for the server {site.server}: {why}")
            continue
        with running(site.command(), site.state / "node.log", site.state / "flower") as node:
            _follow(node, site, say, patience, before)
        before = f": {_reason(node)}"
        patience.wait(f"{site.name}: waiting to be accepted by {site.server}{before}", pause=3.0)


def _follow(node: Child, site: Site, say: Say, patience: Patience, before: str) -> None:
    """While the node lives; once the server took it, patience starts anew. `before`: why the last one ended."""
    accepted, log = False, Tail(site.state / LOG, from_end=True)
    while not node.ended:
        for failure in whole_tables(log.new()):
            _tell(site, failure, say)
        if not accepted and ACCEPTED in node.output():
            accepted = True
            say(f"{site.name}: connected to {site.server}")
        if accepted:
            patience.renew()
            time.sleep(0.5)
        else:
            patience.wait(f"{site.name}: connecting to {site.server}{before and f' again{before}'}", pause=0.5)


def _tell(site: Site, failure: dict[str, Any], say: Say) -> None:
    """Says what went wrong here; a key that cannot be trusted is for people to look at: the site stops.

    What is wrong may be a text of the server's.
    """
    what = safe_text(f"round {failure.get('round_number')}: {failure.get('code')}: {failure.get('detail')}")
    text = f"{site.name}: {what}"
    if failure.get("code") == "untrusted":
        raise FedsslError(f"{text}; the site stops: compare fingerprints with that site (fedssl certificates roster)")
    say(f"warning: {text}")


def about_roster(path: Path, name: str) -> str:
    """Refuses a roster without this site, and says by what it can be compared on the phone."""
    need("secure", "--roster")
    from fedssl.federation.secure.keys import fingerprint, read_roster

    roster = read_roster(path)
    if name not in roster:
        raise FedsslError(f"{path}: site {name} is not in the roster: make it again with keys/{name}.pub")
    return f"{len(roster)} sites in the roster, fingerprint {fingerprint(roster)}"


REFUSED = ("Failed to activate", "uthentic")  # what a SuperNode says when the server will not have it


def _reason(node: Child) -> str:
    if any(mark in node.output() for mark in REFUSED):  # Flower tells nodes no more than that
        return (
            "the server does not know this key (give the .pub file to its operator), or still believes the last "
            "connection alive (a minute at most)"
        )
    return f"its node ended with code {node.process.returncode} ({node.last_lines()})"
