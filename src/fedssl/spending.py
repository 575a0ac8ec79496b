"""What a run spends of its clients' privacy, for the record, and the key of the noise that pays for it."""

import hashlib
import math
import os
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedssl.build import Parts
from fedssl.config import Config
from fedssl.errors import DamagedError
from fedssl.federation.accounting import epsilon, most_participations
from fedssl.federation.checkpoint import Checkpoint
from fedssl.federation.privacy import KEY_BYTES, PrivateAverage
from fedssl.federation.rounds import Server
from fedssl.files import replacing

PRINT = "noise_key"
REMEDY = "put back a copy of it, or start anew with --fresh"


def spent(config: Config, parts: Parts, rounds: int) -> dict[str, Any]:
    """After so many rounds; empty where no privacy is promised. An epsilon of None is infinite."""
    if parts.privacy is None:
        return {}
    per_round = config.client_sampling.clients_per_round
    releases = most_participations(len(parts.partition.clients), per_round, config.run.seed, rounds)
    found = epsilon(parts.privacy.noise_multiplier, releases, parts.privacy.delta)
    return {
        "unit": "client",
        "epsilon": found if math.isfinite(found) else None,
        **asdict(parts.privacy),
        "rounds": rounds,
        "releases": releases,
        "accounting": "Gaussian, over the rounds of the client asked most often; no amplification by sampling",
    }


def with_noise_key(server: Server, parts: Parts, file: Path, checkpoint: Checkpoint | None) -> Server:
    """The server with the key of its noise: a secret that is made once a run and read by its owner alone.

    Never twice: with another key a round that is repeated would show the same update under other noise.
    """
    privacy, aggregate = parts.privacy, server.aggregate
    if privacy is None or privacy.noise_seed == "run" or not isinstance(aggregate, PrivateAverage):
        return server
    known = checkpoint.course.get(PRINT) if checkpoint else None
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
