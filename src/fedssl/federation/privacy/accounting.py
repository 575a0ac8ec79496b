"""How much privacy was spent: epsilon for a client, as an upper bound, and in words."""

import math
from collections import Counter
from typing import Any

from fedssl.federation.client_sampling import sample_clients

WEAK = 10.0  # an epsilon above this promises next to nothing


def most_participations(num_clients: int, clients_per_round: int | None, seed: int, rounds: int) -> int:
    """In how many of the rounds the client that was asked most often was asked.

    Who is asked follows from the seed, not from data, and is known: so no amplification by sampling is counted, but
    rounds in which a client was not asked tell nothing of it.
    """
    counts = Counter(k for r in range(1, rounds + 1) for k in sample_clients(num_clients, clients_per_round, seed, r))
    return max(counts.values(), default=0)


def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """The epsilon of so many Gaussian releases about a client: one with the multiplier divided by their root."""
    from dp_accounting import get_epsilon_gaussian

    if releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


def privacy_text(about: dict[str, Any]) -> str:
    value = "infinite (no noise)" if about["epsilon"] is None else f"{about['epsilon']:.3g}"
    assumed = ""
    if "honest" in about:
        assumed = f"; assumes that {about['honest']} of the {about['clients']} clients of every sum add their noise"
    return (
        f"client-level differential privacy after {about['rounds']} rounds: epsilon {value} at delta "
        f"{about['delta']:g}, for a client asked in {about['releases']} of them (clip_norm {about['clip_norm']:g}, "
        f"noise_multiplier {about['noise_multiplier']:g}, {about['placement']} noise{assumed})"
    )


def cautions(about: dict[str, Any]) -> list[str]:
    """What a reader of epsilon must know."""
    texts = []
    if about["epsilon"] is None or about["epsilon"] > WEAK:
        texts.append(f"an epsilon above {WEAK:g} promises next to nothing: more noise, fewer rounds or more clients")
    if about["noise_seed"] == "run":
        texts.append("privacy.noise_seed = 'run': whoever knows the seed can take the noise away; for experiments only")
    if about["placement"] == "central":
        texts.append(
            "epsilon is about the global weights; what the record says of single clients (loss, n, divergence) is "
            "exact: keep the run folder at the server"
        )
    if about["placement"] == "distributed":
        texts.append(
            "epsilon is about what the server and the readers of the model learn; it counts on the clients named "
            "honest: a client that colludes with the server adds no noise (privacy.honest)"
        )
    return texts
