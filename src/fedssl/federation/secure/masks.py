"""Masks: AES-256-CTR keystreams of 32-bit numbers, added to a vector in Z_2^32 a piece at a time.

A key is used for one stream only, so the counter begins at zero. Of a pair, the site whose name comes first adds the
stream and the other subtracts it: in the sum of both there is nothing of it left.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedssl.federation.secure.fixed_point import Vector
from fedssl.federation.secure.keys import context, derive, pair_secret

AT_ONCE = 2**16  # values that are masked together: keystream and vector stay in the processor's cache
_ZEROS = bytes(4 * AT_ONCE)


def add_stream(vector: Vector, key: bytes, subtract: bool = False) -> None:
    """Adds the keystream of a key to the vector, in place."""
    change = np.subtract if subtract else np.add
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(4 * AT_ONCE + 16)  # a block to spare: older versions of the library ask for it
    numbers = np.frombuffer(buffer, "<u4")
    for start in range(0, vector.size, AT_ONCE):
        piece = vector[start : start + AT_ONCE]
        stream.update_into(_ZEROS[: 4 * piece.size], buffer)
        change(piece, numbers[: piece.size], out=piece)


def own_key(seed: bytes, session: bytes, name: str) -> bytes:
    """The key of the mask that a site has for itself; `session` is the digest of run, round, attempt and set."""
    return derive(seed, context("own mask", session.hex(), name))


def pair_key(private: bytes, public: bytes, session: bytes, one: str, other: str) -> bytes:
    """The key of the mask between two sites, from the round's private key of one and the public key of the other."""
    return pair_secret(private, public, context("pair mask", session.hex(), *sorted((one, other))))
