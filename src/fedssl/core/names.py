"""How a client is called in sentences."""

from collections.abc import Sequence


def client_title(client: int, names: Sequence[str]) -> str:
    """`client 2 (north ward)`, or without a name `client 2`."""
    return f"client {client} ({names[client]})" if client < len(names) else f"client {client}"
