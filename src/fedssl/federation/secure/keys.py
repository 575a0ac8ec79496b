"""Who a site is, and the secrets that two sites have in common though they speak through a server.

A site's node key (P-384) signs the X25519 keys that it makes for a run and for a round; sites have each other's public
node keys (NAME.pub) from elsewhere, so the server cannot put a key of its own between two of them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedssl.core.errors import FedsslError
from fedssl.core.files import replacing
from fedssl.core.settings import check_client_name
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

    def write(self, path: Path) -> None:
        """For `read`; for its owner alone."""
        write_secret(path, self.key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))

    def sign(self, statement: bytes) -> bytes:
        return self.key.sign(statement, _SIGNED_WITH)


def read_roster(*files: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """The sites' public node keys by name: lines as in their .pub files, in one file or several."""
    return roster_from([(str(path), line) for path in files for line in _lines(path)])


def roster_from(lines: Sequence[tuple[str, str]]) -> dict[str, ec.EllipticCurvePublicKey]:
    """The same from (where it stands, line)."""
    roster: dict[str, ec.EllipticCurvePublicKey] = {}
    owners: dict[bytes, str] = {}
    for path, line in lines:
        name, key = _named_key(path, line.strip())
        if name in roster:
            raise FedsslError(f"{path}: site {name} is in the roster twice: every site has a name of its own")
        other = owners.setdefault(_point(key), name)
        if other != name:
            raise FedsslError(f"{path}: sites {other} and {name} have the same key: ask them for their own")
        roster[name] = key
    return roster


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
    except (OSError, ValueError):
        lines = []
    if not lines:
        raise FedsslError(f"{path}: no public key of a node: ask that site for its .pub file")
    return lines


def _named_key(path: str, line: str) -> tuple[str, ec.EllipticCurvePublicKey]:
    name = line.split()[-1]
    check_client_name(name, f"{path}: the name after a key")
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise FedsslError(f"{path}: site {name}: no public key of a node: ask that site for its .pub file") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedsslError(f"{path}: site {name}: no P-384 key: ask that site for its .pub file")
    return name, key


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def roster_text(roster: Roster) -> str:
    """The roster as a file, in the order of names: one line per site, which is what its .pub file says."""
    lines = {name: key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for name, key in roster.items()}
    return "".join(f"{line.decode()} {name}\n" for name, line in sorted(lines.items()))


def fingerprint(roster: Roster) -> str:
    """Ten groups of four digits to read out on the phone: equal for equal rosters, for no others."""
    about = [part for name, key in sorted(roster.items()) for part in (name, _point(key).hex())]
    digest = sha256(context("roster", *about)).hexdigest()
    return " ".join(digest[at : at + 4] for at in range(0, 40, 4))


def verify(roster: Roster, name: str, signature: bytes, statement: bytes) -> None:
    """Refuses what the named site did not sign."""
    if name not in roster:
        raise ClientError("untrusted", f"site {name}: its public key is not here: get its .pub file from that site")
    try:
        roster[name].verify(signature, statement, _SIGNED_WITH)
    except InvalidSignature:
        raise ClientError(
            "untrusted", f"site {name}: its signature does not verify: its .pub file is another one, or the server lies"
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
