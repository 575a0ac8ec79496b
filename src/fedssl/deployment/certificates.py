"""Certificates and keys of a deployment: a CA of one's own, the server's certificate, a key for each client's node.

The CA's key signs servers and is needed for nothing else: keep it off the server. A node's private key is made where it
is used and stays there; only the public half goes to the server.
"""

import ipaddress
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedssl.core.errors import FedsslError
from fedssl.core.files import storing
from fedssl.core.settings import check_client_name
from fedssl.deployment.network import LOOPBACK

DAYS = 397  # the longest that browsers take; a deployment is set up anew once a year


@dataclass(frozen=True)
class ServerCertificate:
    """What a server shows, and the CA that clients check it against."""

    ca: Path
    certificate: Path
    key: Path


def make_server_certificate(folder: Path, hosts: list[str], days: int = DAYS) -> ServerCertificate:
    """A new CA and a certificate for a server that is reached by these names or addresses; nothing is overwritten."""
    ca_key, server_key = _new_key(), _new_key()
    host = hosts[0] if hosts else LOOPBACK[0]
    ca_name, server_name = _name(f"fedssl CA of {host}"), _name(host)
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [_alternative(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]
    server = (
        _builder(server_name, ca_name, server_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    made = ServerCertificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    _refuse_existing([*vars(made).values(), folder / "ca.key"])
    _write(made.ca, _pem(ca))
    _write(made.certificate, _pem(server))
    _write(made.key, _private_pem(server_key), secret=True)
    _write(folder / "ca.key", _private_pem(ca_key), secret=True)
    return made


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """(private, public) key of a client's node; the public one is for the server's folder of keys."""
    check_client_name(name, "NAME")
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    _refuse_existing([private, public])
    key = _new_key()
    _write(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode())
    return private, public


def make_roster(out: Path, files: list[Path]) -> tuple[int, str]:
    """One file of all sites' public keys, for every site; returns how many they are, and their fingerprint."""
    from fedssl.federation.secure.keys import fingerprint, read_roster, roster_text

    roster = read_roster(*files)
    if out.exists() and out.read_text(encoding="utf-8") != roster_text(roster):
        raise FedsslError(f"{out}: is there already with other keys: nothing is overwritten; choose another --out")
    if not out.exists():
        _write(out, roster_text(roster).encode())
    return len(roster), fingerprint(roster)


def check_server_certificate(made: ServerCertificate) -> None:
    """Refuses, before anything starts, files that are missing, expired, or do not belong together."""
    for path in vars(made).values():
        if not path.is_file():
            raise FedsslError(f"{path}: there is no such file: make it with `fedssl certificates make`")
    try:
        certificates = {
            path: x509.load_pem_x509_certificates(path.read_bytes()) for path in (made.ca, made.certificate)
        }
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.certificate, made.key)
    except (ValueError, ssl.SSLError) as error:
        raise FedsslError(f"{made.certificate}, {made.key}: no certificate and its key: {error}") from None
    for path, (first, *_) in certificates.items():
        if first.not_valid_after_utc < datetime.now(UTC):
            raise FedsslError(f"{path}: expired on {first.not_valid_after_utc:%Y-%m-%d}: make a new one")
    if not _vouched_for(certificates[made.certificate], certificates[made.ca]):
        raise FedsslError(
            f"{made.certificate}: is not signed by {made.ca}: clients would refuse it; if a CA between the two signed "
            f"it, put that CA's certificate at the end of {made.certificate}"
        )


def _vouched_for(chain: list[Any], cas: list[Any]) -> bool:
    """Whether one of the CAs signed the first certificate, or signed one whose chain of signatures leads to it."""
    for certificate, issuer in zip(chain, [*chain[1:], None], strict=True):
        if any(_signed(certificate, ca) for ca in cas):
            return True
        if issuer is None or not _signed(certificate, issuer):
            return False
    return False


def _signed(certificate: Any, ca: Any) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except Exception:  # a wrong name, a wrong signature, another kind of key: all the same
        return False
    return True


def public_keys(folder: Path, names: list[str]) -> dict[str, Path]:
    """The public key of each client, NAME.pub in `folder`; missing ones are named, all at once."""
    keys = {name: folder / f"{name}.pub" for name in names}
    missing = [str(path) for path in keys.values() if not path.is_file()]
    if missing:
        raise FedsslError(
            f"{', '.join(missing)}: missing: each client makes its key with `fedssl certificates node NAME` and gives "
            "the .pub file to the server"
        )
    return keys


def open_key(key: Path) -> str:
    """ "" where a private key is its owner's alone, else what to do about it."""
    others = stat.S_IMODE(key.stat().st_mode) & 0o077
    return f"{key}: others on this machine can read it: chmod 600 {key}" if others else ""


def days_left(certificate: Path) -> int:
    end = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return (end - datetime.now(UTC)).days


def _new_key() -> Any:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common: str) -> Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(subject: Any, issuer: Any, key: Any, days: int) -> Any:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=max(1, 1 - days)))  # clocks differ a little
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: Any) -> bytes:
    return bytes(certificate.public_bytes(Encoding.PEM))


def _private_pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _refuse_existing(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise FedsslError(f"{path}: is there already: nothing is overwritten; choose another --out")


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    with storing(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
