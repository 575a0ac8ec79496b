"""What a run spends of its clients' privacy, for the record, and the key of the noise that pays for it."""

import hashlib
import math
import os
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.core.errors import DamagedError
from fedssl.core.files import replacing
from fedssl.federation.checkpoint import Checkpoint
from fedssl.federation.privacy.accounting import epsilon, most_participations
from fedssl.federation.privacy.mechanism import KEY_BYTES, ClientDP, PrivateAverage
from fedssl.federation.rounds import Server

if TYPE_CHECKING:
    from fedssl.federation.secure.terms import Terms

PRINT = "noise_key"
REMEDY = "put back a copy of it, or start anew with --fresh"


def spent(privacy: ClientDP | None, server: Server, rounds: int, terms: "Terms | None" = None) -> dict[str, Any]:
    """After so many rounds; empty where no privacy is promised. An epsilon of None is infinite.

    `terms` of secure sums: of the noise that all clients of a round add, only that of the honest ones counts.
    """
    if privacy is None:
        return {}
    releases = most_participations(server.num_clients, server.clients_per_round, server.seed, rounds)
    about = asdict(privacy) | _crowd(privacy, terms)
    return {
        "unit": "client",
        "epsilon": epsilon_after(privacy, releases, terms),
        **{name: setting for name, setting in about.items() if setting is not None},
        "rounds": rounds,
        "releases": releases,
        "accounting": "Gaussian, over the rounds of the client asked most often; no amplification by sampling",
    }


def epsilon_after(privacy: ClientDP, releases: int, terms: "Terms | None" = None) -> float | None:
    """Of so many uploads of one client; None: infinite."""
    crowd = _crowd(privacy, terms)
    share = crowd["honest"] / crowd["clients"] if crowd else 1.0
    value = epsilon(privacy.noise_multiplier * math.sqrt(share), releases, privacy.delta)
    return value if math.isfinite(value) else None


def _crowd(privacy: ClientDP, terms: "Terms | None") -> dict[str, int]:
    """In secure sums: how many add noise, and how many of them are counted on."""
    return {"honest": privacy.honest or terms.threshold, "clients": terms.clients} if terms else {}


def with_noise_key(server: Server, file: Path, checkpoint: Checkpoint | None) -> Server:
    """The server with the key of its noise: a secret that is made once a run and read by its owner alone.

    Never twice: with another key a round that is repeated would show the same update under other noise.
    """
    aggregate = server.aggregate
    if not isinstance(aggregate, PrivateAverage) or aggregate.privacy.noise_seed == "run":
        return server
    known = checkpoint.run.get(PRINT) if checkpoint else None
    if not file.exists() and (known or (checkpoint and checkpoint.state.round_number)):
        raise DamagedError(f"{file}: the key of the noise is missing: {REMEDY}")
    keyed = replace(server, aggregate=replace(aggregate, key=_secret(file)))
    if known not in (None, noise_print(keyed)[PRINT]):
        raise DamagedError(f"{file}: not the key of the noise with which the run was begun: {REMEDY}")
    return keyed


def noise_print(server: Server) -> dict[str, str]:
    """By which a secret key is known again, and which does not give it away."""
    aggregate = server.aggregate
    if not isinstance(aggregate, PrivateAverage) or aggregate.privacy.noise_seed == "run":
        return {}
    return {PRINT: hashlib.sha256(b"print of " + aggregate.key).hexdigest()}


def _secret(file: Path) -> bytes:
    if not file.exists():
        with replacing(file) as unfinished:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(secrets.token_hex(KEY_BYTES))
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise DamagedError(f"{file}: the key of the noise is damaged: {REMEDY}")
    return key
