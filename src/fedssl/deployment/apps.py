"""The two apps that Flower starts in a deployment, by the names in flower_app/pyproject.toml."""

from pathlib import Path

from fedssl.engines.flower import Grid
from fedssl.engines.flower_client import Side, make_client_app
from fedssl.engines.flower_messages import Facts
from fedssl.engines.flower_server import make_server_app

# Each app is a process of its own for every message: it imports its own side only, and when it is needed.


def _run(grid: Grid, settings: Facts) -> None:
    from fedssl.deployment.at_server import run_at_server

    run_at_server(grid, settings)


def _open_side(node: Facts, about: Facts) -> Side:
    from fedssl.deployment.at_site import open_side

    return open_side(node, about)


def _name_of(node: Facts) -> str:
    return str(node.get("name", ""))


def _log_of(node: Facts) -> Path:
    from fedssl.deployment.at_site import log_of

    return log_of(node)


server_app = make_server_app(_run)
client_app = make_client_app(_open_side, _name_of, _log_of)
