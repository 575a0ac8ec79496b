"""What secure aggregation costs a round: CPU seconds for the paper's 38.46 M values, one thread.

    python -m benchmarks.secure_masks [--values 38460000] [--repeats 3] [--sites 10]

A peer is one mask that a client adds, or the server takes away; a bare pass is AES-256-CTR over as many bytes and
nothing else. A client of n sites adds n masks (its own and one a peer). The server takes away one for each survivor,
and one for each pair of a survivor and a site that dropped out.
"""

import argparse
import secrets
from hashlib import sha256

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.measuring import take_turns
from fedssl.core.weights import Weights
from fedssl.federation.secure.fixed_point import Vector, decode, encode, layout_of
from fedssl.federation.secure.masks import AT_ONCE, add_stream
from fedssl.federation.secure.shares import join, split

NEEDED = 1.5  # CPU seconds a peer


def bare_pass(values: int) -> None:
    stream = Cipher(algorithms.AES256(secrets.token_bytes(32)), modes.CTR(bytes(16))).encryptor()
    zeros, buffer = bytes(4 * AT_ONCE), bytearray(4 * AT_ONCE + 16)
    for start in range(0, values, AT_ONCE):
        stream.update_into(zeros[: 4 * min(AT_ONCE, values - start)], buffer)


def measure(values: int, repeats: int, sites: int) -> dict[str, float]:
    torch.set_num_threads(1)
    origin = Weights({"w": torch.zeros(values)})
    trained = Weights({"w": 0.01 * torch.randn(values)})
    layout = layout_of(origin, sites, 1000, limit=8.0, statistics_limit=8.0)
    vector: Vector = encode(layout, trained, origin, 500, {})
    masked, threshold = vector.copy(), 2 * sites // 3 + 1
    shares = dict(enumerate(split(bytes(32), threshold, sites)))
    seconds, _ = take_turns(
        {
            "bare AES-256-CTR pass": lambda: bare_pass(values),
            "a peer: stream and sum": lambda: add_stream(masked, secrets.token_bytes(32)),
            "encode": lambda: encode(layout, trained, origin, 500, {}),
            "digest of the vector": lambda: sha256(vector.data).digest(),
            "decode": lambda: decode(layout, vector, origin),
            "add an upload": lambda: np.add(masked, vector, out=masked),
            f"one secret from {threshold} shares": lambda: join(shares, threshold),
        },
        repeats,
    )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=38_460_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sites", type=int, default=10)
    given = parser.parse_args()
    seconds = measure(given.values, given.repeats, given.sites)
    for name, value in seconds.items():
        print(f"{name:28} {value:8.3f} CPU s")
    peer = seconds["a peer: stream and sum"]
    print(f"masks of a client, {given.sites} sites  {given.sites * peer:8.3f} CPU s")
    print(f"a peer: {peer:.3f} CPU s, {NEEDED} needed: {'met' if peer <= NEEDED else 'missed'}")


if __name__ == "__main__":
    main()
