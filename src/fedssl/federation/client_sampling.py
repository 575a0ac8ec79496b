"""Who takes part in a round."""

from fedssl.core.seeding import numpy_stream


def sample_clients(num_clients: int, clients_per_round: int | None, seed: int, round_number: int) -> list[int]:
    """All clients, or m of K without replacement; a function of seed and round alone, whatever was drawn before."""
    if clients_per_round is None or clients_per_round >= num_clients:
        return list(range(num_clients))
    stream = numpy_stream(seed, "client-sampling", "round", round_number)
    return sorted(int(k) for k in stream.choice(num_clients, size=clients_per_round, replace=False))
