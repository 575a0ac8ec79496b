"""Shares of a round's two secrets: t of n sites can put them together, fewer learn nothing.

A site has two secrets a round: the seed of its own mask, and the private X25519 key of its pair masks. Of a site that
delivered the others reveal the seed; of one that dropped out they reveal the key, from which all of its pair masks
follow. Therefore that key is made anew for every round and signed by the node key; it is not the run's. What is
recovered opens one round of a site that dropped out, whose upload never came or stays under its own mask, and says
nothing of any other round.

The other way would be one mask key per run, and each round a sealed list of that round's n − 1 pair seeds whose key is
shared. It saves a signature and n − 1 X25519 exchanges a round (a millisecond), but whoever reads a site's disk later
could open the masks of all rounds, and a site that lost its record of a round would mask another vector with the same
streams. A fresh key can do neither, the server can check a recovered key against the public one, and it is the
protocol as it was proven (Bonawitz et al., 2017).

The secrets have 32 bytes; Shamir's sharing of pycryptodome takes 16, so each half is shared by itself.
"""

import secrets
from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedssl.core.errors import FedsslError
from fedssl.federation.secure.keys import SECRET_BYTES

HALF = SECRET_BYTES // 2
NONCE_BYTES, TAG_BYTES = 12, 16
BOX_BYTES = NONCE_BYTES + 2 * SECRET_BYTES + TAG_BYTES  # a share of each of the two secrets, sealed


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """`count` shares, in the order of their receivers; any `threshold` of them give the secret back."""
    halves = [Shamir.split(threshold, count, secret[at : at + HALF], ssss=False) for at in (0, HALF)]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from shares by their place in the order, from 0 on; exactly `threshold` of them are used."""
    if len(shares) < threshold:
        raise FedsslError(f"{len(shares)} shares of a secret, {threshold} are needed")
    used = sorted(shares.items())[:threshold]
    halves = ([(place + 1, share[at : at + HALF]) for place, share in used] for at in (0, HALF))
    return b"".join(Shamir.combine(half, ssss=False) for half in halves)


def seal_box(key: bytes, content: bytes, about: bytes) -> bytes:
    """For one receiver, under the secret of the pair; opens only with the same `about`."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def open_box(key: bytes, box: bytes, about: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], about)
    except InvalidTag:
        raise FedsslError("a share that does not open: not meant for this site and round, or altered") from None
