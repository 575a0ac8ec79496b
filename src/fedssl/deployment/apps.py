"""The two apps that Flower starts in a deployment, by the names in flower_app/pyproject.toml."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedssl.federation.engines.flower.api import Context, ServerApp
from fedssl.federation.engines.flower.client_app import Host, Side, make_client_app
from fedssl.federation.engines.flower.directory import Grid
from fedssl.federation.engines.flower.messages import Facts
from fedssl.federation.messages import Failure, TrainResult


# Both are named in one file: each side imports its own, and when it is needed.
def _run(grid: Grid, settings: Facts) -> None:
    from flwr.superlink.grid import http_grid

    from fedssl.deployment.server_run import run_at_server
    from fedssl.deployment.supernode import EAGER
    from fedssl.deployment.transfer import lean_grid

    patched: Any = http_grid
    patched.pull_objects = partial(patched.pull_objects, **EAGER)
    run_at_server(lean_grid(grid), settings)


class AtSite(Host):
    """A client's app at its site: see site_run."""

    def name(self, node: Facts) -> str:
        return str(node.get("name", ""))

    def log(self, node: Facts) -> Path:
        from fedssl.deployment.site_run import log_of

        return log_of(node)

    def admit(self, node: Facts, about: Facts) -> None:
        from fedssl.deployment.site_run import admit

        admit(node, about)

    def open(self, node: Facts, about: Facts) -> Side:
        from fedssl.deployment.site_run import open_side

        return open_side(node, about)

    def arrived(self, node: Facts, about: Facts) -> None:
        from fedssl.deployment.site_run import record_task

        record_task(node, about)

    def leaving(
        self, node: Facts, about: Facts, reply: TrainResult | Failure, *, seconds: float, side: Side | None
    ) -> None:
        from fedssl.deployment.site_run import record_reply

        record_reply(node, about, reply, seconds=seconds, side=side)


def make_server_app(run: Callable[[Grid, Facts], None]) -> ServerApp:
    """An app that calls `run` with the grid and the run's settings (scalars: Flower takes no others)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, dict(context.run_config))

    return app


server_app = make_server_app(_run)

client_app = make_client_app(AtSite())
