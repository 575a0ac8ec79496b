"""Who a site is: key files as a deployment makes them, rosters, and files that only their owner reads."""

import importlib
import re
import stat
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedssl.core.errors import FedsslError
from fedssl.deployment.certificates import make_node_key
from fedssl.federation import secure
from fedssl.federation.secure.keys import (
    Identity,
    context,
    derive,
    fingerprint,
    new_private_key,
    pair_secret,
    public_key,
    read_roster,
    roster_text,
    verify,
    write_secret,
)
from fedssl.federation.secure.member import RunRecord, new_record
from fedssl.federation.secure.stages import from_bytes, to_bytes


def test_the_keys_of_a_deployment_sign_and_verify(tmp_path):
    private, public = make_node_key(tmp_path, "berlin")
    _, other = make_node_key(tmp_path, "delft")
    identity, roster = Identity.read(private, "berlin"), read_roster(public, other)
    signature = identity.sign(b"statement")
    verify(roster, "berlin", signature, b"statement")
    for name, text in (("delft", b"statement"), ("berlin", b"another"), ("oslo", b"statement")):
        with pytest.raises(FedsslError, match=f"^site {name}: "):
            verify(roster, name, signature, text)


def test_rosters_with_one_key_or_name_twice_or_a_missing_file_are_refused(tmp_path):
    _, public = make_node_key(tmp_path, "berlin")
    stolen = tmp_path / "delft.pub"
    stolen.write_text(public.read_text().replace(" berlin", " delft"))
    with pytest.raises(FedsslError, match="sites berlin and delft have the same key"):
        read_roster(public, stolen)
    _, second = make_node_key(tmp_path / "elsewhere", "berlin")
    with pytest.raises(FedsslError, match="site berlin is in the roster twice"):
        read_roster(public, second)
    with pytest.raises(FedsslError, match=r"lyon\.pub: no public key of a node"):
        read_roster(public, tmp_path / "lyon.pub")
    (tmp_path / "odd.pub").write_text(public.read_text().replace(" berlin", " ../berlin"))
    with pytest.raises(FedsslError, match=r"odd\.pub: the name after a key: '\.\./berlin' is no name"):
        read_roster(tmp_path / "odd.pub")


def test_a_roster_is_one_file_with_a_fingerprint_for_the_phone(tmp_path):
    """The same whichever way the files were put together, and another for another key or name."""
    files = [make_node_key(tmp_path, name)[1] for name in ("delft", "berlin")]
    roster = read_roster(*files)
    (tmp_path / "roster").write_text(roster_text(roster))
    assert (tmp_path / "roster").read_text() == "".join(sorted((f.read_text() for f in files), key=lambda t: t[-8:]))
    assert read_roster(tmp_path / "roster") == roster
    said = fingerprint(roster)
    assert re.fullmatch(r"([0-9a-f]{4} ){9}[0-9a-f]{4}", said)
    assert fingerprint(read_roster(*reversed(files))) == said
    swapped = {"berlin": roster["delft"], "delft": roster["berlin"]}
    assert len({said, fingerprint(swapped), fingerprint({"delft": roster["delft"]})}) == 3


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()])
def test_other_kinds_of_keys_and_rubbish_are_refused(tmp_path, key):
    private, public = tmp_path / "berlin.key", tmp_path / "berlin.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" berlin")
    with pytest.raises(FedsslError, match=r"berlin\.key: no P-384 key"):
        Identity.read(private, "berlin")
    with pytest.raises(FedsslError, match=r"berlin\.pub: site berlin: no P-384 key"):
        read_roster(public)
    for path in (private, public):
        path.write_bytes(b"rubbish \xff\x00")
    with pytest.raises(FedsslError, match=r"berlin\.key: no private key of a node"):
        Identity.read(private, "berlin")
    with pytest.raises(FedsslError, match=r"berlin\.pub: no public key of a node"):
        read_roster(public)


def test_two_sites_derive_one_secret_for_each_purpose():
    mine, yours = new_private_key(), new_private_key()
    about = context("box key", "run-1", "berlin", "delft")
    ours = pair_secret(mine, public_key(yours), about)
    assert ours == pair_secret(yours, public_key(mine), about)
    others = [context("box key", "run-2", "berlin", "delft"), context("pair mask", "run-1", "berlin", "delft")]
    assert len({ours, *(pair_secret(mine, public_key(yours), other) for other in others)}) == 3


def test_contexts_cannot_be_mistaken_for_each_other():
    lists = [("a", "b", "c"), ("a", "bc"), ("a", ["b", "c"]), ("a", "b", ["c"]), ("a", '"b", "c"'), ("ab", "c")]
    assert len({context(*facts) for facts in lists}) == len(lists)
    assert derive(b"s" * 32, context("a", "1")) != derive(b"s" * 32, context("a", 1))


def test_a_record_on_disk_is_for_its_owner_alone(tmp_path):
    path, record = tmp_path / "run.secret", new_record("run-1")
    for _ in range(2):  # also when it replaces an older one
        write_secret(path, to_bytes(record))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert from_bytes(RunRecord, path.read_bytes()) == record
    assert [file.name for file in tmp_path.iterdir()] == ["run.secret"]


@pytest.mark.parametrize("library", ["Crypto", "cryptography"])
def test_without_its_libraries_the_remedy_is_named(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(FedsslError, match=rf'{library} is not installed: pip install "fedssl\[secure\]"'):
        importlib.reload(secure)
