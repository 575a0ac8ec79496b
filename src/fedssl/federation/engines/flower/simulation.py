"""Flower's simulation: clients in Ray actors on this machine or a Ray cluster, with the run folder on a shared disk.

The run itself stays where it is: Flower's server app only hands its grid over and waits until the run is done.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Say
from fedssl.federation.engines.flower.api import Context, ServerApp
from fedssl.federation.engines.flower.client_app import Host, Side, make_client_app
from fedssl.federation.engines.flower.directory import Grid, Numbered
from fedssl.federation.engines.flower.engine import FlowerEngine
from fedssl.federation.engines.flower.messages import Facts

START_LIMIT = 300.0  # seconds for Ray to start
END_LIMIT = 60.0  # seconds for Ray to end
PATIENCE = 600.0  # seconds; simulated nodes come up with Ray and then stay


@dataclass(frozen=True)
class Resources:
    """What Ray gives each client, and the cluster it asks; "": a Ray of our own on this machine."""

    cpus_per_client: float = 1.0
    gpus_per_client: float = 0.0
    ray_address: str = ""


@dataclass(frozen=True)
class _Worker(Host):
    """Where every client of a simulation may run."""

    open_side: Callable[[Facts, Facts], Side]
    folder: Path

    def open(self, node: Facts, about: Facts) -> Side:
        return self.open_side(node, about)

    def log(self, node: Facts) -> Path:  # noqa: ARG002
        return self.folder / "failures-at-clients.jsonl"


@dataclass(kw_only=True, eq=False)
class Simulation:
    """A context that is a `FlowerEngine` while it is open."""

    clients: int
    open_side: Callable[[Facts, Facts], Side]  # as `Host.open`
    folder: Path
    resources: Resources
    waiting: Say
    presence: Callable[[dict[int, str]], None] = lambda _: None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        self.client_app = make_client_app(_Worker(self.open_side, self.folder))
        self._grids: Queue[Grid] = Queue()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._simulate, name="flower simulation", daemon=True)

    def __enter__(self) -> FlowerEngine:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a client without a GPU sees none
        # A Ray that starts in a thread warns about signals it leaves alone, and Flower about its own simulation entry.
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread.start()
        try:
            grid = self._first_grid()
        except BaseException:
            self._done.set()
            raise
        self._engine = FlowerEngine(
            grid=grid,
            directory=Numbered(grid, self.clients),
            folder=self.folder,
            about=lambda _: {},
            waiting=self._watch,
            patience=PATIENCE,
            presence=self.presence,
            clients=self.clients,
            time_limit=self.time_limit,
            workers=self._side_by_side(),
        )
        return self._engine

    def _side_by_side(self) -> int:
        """Clients that train at the same time; of a cluster nothing is known here."""
        if self.resources.ray_address:
            return self.clients
        return max(int((os.cpu_count() or 1) / self.resources.cpus_per_client), 1)

    def __exit__(self, *details: object) -> None:
        self._engine.__exit__(*details)
        self._done.set()
        self._thread.join(END_LIMIT)

    def _first_grid(self) -> Grid:
        begun = time.monotonic()
        while time.monotonic() - begun < START_LIMIT:
            try:
                return self._grids.get(timeout=0.2)
            except Empty:
                self._watch("waiting for Flower's simulation to start")
        raise FedsslError(f"engine: Flower's simulation did not start within {START_LIMIT:g} s")

    def _watch(self, text: str) -> None:
        if not self._thread.is_alive():
            raise FedsslError(
                f"engine: Flower's simulation ended: {self._error or 'no reason was given'}; "
                "flower.cpus_per_client, flower.gpus_per_client and flower.ray_address say what is asked of Ray"
            )
        self.waiting(text)

    def _simulate(self) -> None:
        from flwr.server.superlink.fleet.vce.backend import raybackend  # late: it brings Ray
        from flwr.simulation import run_simulation

        from fedssl.federation.engines.flower.ray_pool import LivingActors

        patched: Any = raybackend
        patched.BasicActorPool = LivingActors
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
            self._grids.put(grid)
            self._done.wait()

        try:
            run_simulation(app, self.client_app, self.clients, backend_config=self._backend())
        except BaseException as error:
            self._error = error

    def _backend(self) -> dict[str, Any]:
        """A cluster has its own number of CPUs; what actors print goes to their own logs."""
        requested = {"num_cpus": self.resources.cpus_per_client, "num_gpus": self.resources.gpus_per_client}
        return {
            # "local": a Ray of its own. Without an address Ray would join whatever cluster was last started here.
            "init_args": {
                "address": self.resources.ray_address or "local",
                "log_to_driver": False,
                "logging_level": "error",
            },
            "client_resources": {
                name: int(value) if value.is_integer() else value for name, value in requested.items()
            },
        }
