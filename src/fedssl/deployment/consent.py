"""Whether a site takes part in a run: what it was asked, what a person there approved, and whether it has left.

One small file per run, STATE/consent/RUN.json, written whole and with its own checksum. What lets something out is
recorded before it counts, what keeps it in counts before it is recorded: a kill in between lets nothing out unrecorded.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock

from fedssl.core.checksums import signed_json
from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.deployment.audit import Audit
from fedssl.deployment.policy import Policy
from fedssl.experiment.config.schema import Raw
from fedssl.experiment.config.texts import flatten
from fedssl.experiment.records.run_record import read_json
from fedssl.experiment.resume import Change
from fedssl.federation.messages import ClientError

FOLDER = "consent"
AGREED = ("rounds", "evaluation")  # of what a resumed run may change: what a site is asked about anew


@dataclass(frozen=True)
class Consent:
    """A site's word on a run."""

    run: str
    settings: Raw  # of its last task that was looked at
    approved: str = ""  # SHA-256 of the settings that a person approved
    left: bool = False

    @property
    def digest(self) -> str:
        return settings_digest(self.settings)

    @property
    def status(self) -> str:
        if self.left:
            return "left"
        return "approved" if self.approved == self.digest else "not approved by a person"


def settings_digest(settings: Raw) -> str:
    """SHA-256 of what a site agrees to, equal at the server: all settings but those that are the server's own.

    >>> from fedssl.deployment.consent import settings_digest
    >>> settings_digest({"rounds": 10, "threads": 2}) == settings_digest({"rounds": 10, "threads": 4})
    True
    """
    agreed = {
        key: value
        for key, value in flatten(settings).items()
        if key.split(".")[0] in AGREED or not (Change(key, None, None).harmless or key.startswith("init."))
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()


def spelled(digest: str) -> str:
    """In groups of four, to be read out on the phone."""
    return " ".join(digest[at : at + 4] for at in range(0, len(digest), 4))


def read_consent(state: Path, run: str) -> Consent | None:
    path = state / FOLDER / f"{run}.json"
    return Consent(**read_json(path, must=True)) if path.exists() else None


def deciding(state: Path) -> FileLock:
    """Held while a word is read and written: tasks come while people decide, and nobody's word is lost."""
    return FileLock(state / ".consent.lock")


def check_consent(state: Path, run: str, settings: Raw, policy: Policy) -> None:
    """Refuses a run that the site has left, or that waits for a person; of the latter the settings are kept."""
    with deciding(state):
        known = check_left(state, run)
        if policy.approval == "ask":
            _check_approved(state, run, known, settings, policy)


def _check_approved(state: Path, run: str, known: Consent | None, settings: Raw, policy: Policy) -> None:
    digest = settings_digest(settings)
    if known is None or known.digest != digest:
        if known is None and len([*state.glob(f"{FOLDER}/*.json")]) >= policy.max_runs:
            raise FedsslError(f"max_runs: {policy.max_runs} runs were asked for here: delete {state / FOLDER}/RUN.json")
        known = replace(known, settings=settings) if known else Consent(run, settings)
        Audit(state).add("asked", run=run, settings=digest)
        _write(state, known)
    if known.approved != digest:
        raise ClientError("approval", f"run {run}: waits until a person here says `fedssl client approve {run}`")


def check_left(state: Path, run: str) -> Consent | None:
    """The site's word on a run, if it did not leave it."""
    known = read_consent(state, run)
    if known and known.left:
        raise ClientError("left", f"run {run}: this site has left it: `fedssl client join {run}` takes part again")
    return known


def approve(state: Path, consent: Consent) -> None:
    """What the person saw is what counts: other settings ask again. A run that was left meanwhile stays so."""
    with deciding(state):
        left = (read_consent(state, consent.run) or consent).left
        Audit(state).add("approved", run=consent.run, settings=consent.digest)
        _write(state, replace(consent, approved=consent.digest, left=left))


def leave(state: Path, run: str) -> None:
    """From now on nothing of this run leaves but the code `left`."""
    with deciding(state):
        _write(state, replace(read_consent(state, run) or Consent(run, {}), left=True))
        Audit(state).add("left", run=run)


def join(state: Path, run: str) -> None:
    """Takes part again; what was approved stays approved."""
    with deciding(state):
        known = read_consent(state, run)
        if known is None or not known.left:
            raise FedsslError(f"run {run}: this site has not left it")
        Audit(state).add("joined", run=run)
        _write(state, replace(known, left=False))


def runs_at(state: Path) -> dict[str, str]:
    """The runs that were asked for or trained here, with what the site says to each."""
    known = {path.stem: "taken part in" for path in state.glob("runs/*") if path.is_dir()}
    for path in state.glob(f"{FOLDER}/*.json"):
        consent = read_consent(state, path.stem)
        known[path.stem] = consent.status if consent else ""
    return dict(sorted(known.items()))


def find_run(state: Path, given: str) -> str:
    """A run by its id, or by so much of its beginning that there is no other."""
    known = runs_at(state)
    matches = [run for run in known if run.startswith(given)]
    if len(matches) != 1:
        listed = ", ".join(f"{run} ({status})" for run, status in known.items()) or "none"
        raise FedsslError(f"RUN: {len(matches)} runs begin with {given!r}; known at {state}: {listed}")
    return matches[0]


def _write(state: Path, consent: Consent) -> None:
    folder = state / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{consent.run}.json", signed_json(json.dumps(asdict(consent), indent=1)))
