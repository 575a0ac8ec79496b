"""Who a site is, and the secrets that two sites have in common though they speak through a server.

A site's node key (P-384) signs the X25519 keys that it makes for a run and for a round; sites have each other's public
node keys (NAME.pub) from elsewhere, so the server cannot put a key of its own between two of them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedssl.core.errors import FedsslError
from fedssl.core.files import replacing
from fedssl.federation.messages import ClientError

SECRET_BYTES = 32  # of every seed and key here
_SIGNED_WITH = ec.ECDSA(hashes.SHA384())

Roster = Mapping[str, ec.EllipticCurvePublicKey]
"""The public node keys by the sites' names."""


def context(purpose: str, *facts: str | int | Sequence[str]) -> bytes:
    """What a signature or a derived key is about; two different lists never give the same bytes."""
    return json.dumps(["fedssl secure aggregation", 1, purpose, *facts]).encode()


@dataclass(frozen=True)
class Identity:
    """A site's name and its private node key."""

    name: str
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def new(cls, name: str) -> "Identity":
        """For a client without a node of its own, as in a simulation."""
        return cls(name, ec.generate_private_key(ec.SECP384R1()))

    @classmethod
    def read(cls, path: Path, name: str) -> "Identity":
        """From the private key file that `fedssl certificates node` made."""
        try:
            key = load_ssh_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
            raise FedsslError(f"{path}: no private key of a node: give the one of `fedssl certificates node`") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
            raise FedsslError(f"{path}: no P-384 key: make one with `fedssl certificates node {name}`")
        return cls(name, key)

    def sign(self, statement: bytes) -> bytes:
        return self.key.sign(statement, _SIGNED_WITH)


def read_roster(folder: Path, names: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """NAME.pub of every site; refuses a name that comes twice and one key under two names."""
    for name in names:
        if list(names).count(name) > 1:
            raise FedsslError(f"{folder}: site {name} is in the list twice: every site has a name of its own")
    roster = {name: _public_key(folder / f"{name}.pub") for name in names}
    owners: dict[bytes, str] = {}
    for name, key in roster.items():
        other = owners.setdefault(key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint), name)
        if other != name:
            raise FedsslError(f"{folder}: sites {other} and {name} have the same key: ask them for their own")
    return roster


def _public_key(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise FedsslError(f"{path}: no public key of a node: ask that site for its .pub file") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedsslError(f"{path}: no P-384 key: ask that site for its .pub file")
    return key


def verify(roster: Roster, name: str, signature: bytes, statement: bytes) -> None:
    """Refuses what the named site did not sign."""
    if name not in roster:
        raise ClientError("refused", f"site {name}: its public key is not here: get its .pub file from that site")
    try:
        roster[name].verify(signature, statement, _SIGNED_WITH)
    except InvalidSignature:
        raise ClientError(
            "refused", f"site {name}: its signature does not verify: its .pub file is another one, or the server lies"
        ) from None


def new_private_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def pair_secret(private: bytes, public: bytes, about: bytes) -> bytes:
    """What two sites, and nobody else, can compute: X25519, then HKDF; `about` must name both in one order."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order: the secret would be known to all
        raise FedsslError("a public key that leads to no secret") from None
    return derive(shared, about)


def derive(secret: bytes, about: bytes) -> bytes:
    return HKDF(hashes.SHA256(), SECRET_BYTES, salt=None, info=about).derive(secret)


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner can read, whole or not there."""
    with replacing(path) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
