"""Where the clients of a run are: what is built on this machine, who carries the tasks, whose states lie here."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from fedssl.build import Parts, build
from fedssl.calibration import Choice, choose_engine
from fedssl.client_side import client_store, for_workers, simulated
from fedssl.config import Config
from fedssl.data.fetch import Progress
from fedssl.engines.in_process import InProcessEngine
from fedssl.engines.processes import ProcessEngine
from fedssl.extras import need
from fedssl.federation.client_store import ClientStore
from fedssl.federation.rounds import Engine
from fedssl.reports.progress import View
from fedssl.reports.run_folder import RunFolder


class Surroundings(Protocol):
    def build(self, config: Config, progress: Progress) -> Parts: ...

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> Choice:
        """Fills in what the settings leave open about the engine."""

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        """The clients' states, as far as they lie on this machine."""

    def engine(
        self, config: Config, parts: Parts, folder: RunFolder, store: ClientStore | None, view: View
    ) -> AbstractContextManager[Engine]: ...


class OneMachine:
    """All clients here (or on a Ray cluster that shares the disk), with their images and states."""

    def build(self, config: Config, progress: Progress) -> Parts:
        if config.run.engine == "flower":
            need("flower", "engine", also=("ray",))
        return build(config, progress)

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> Choice:
        return choose_engine(config, parts, folder.clients, total_steps)

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        return client_store(config, parts, folder.clients)

    def engine(
        self, config: Config, parts: Parts, folder: RunFolder, store: ClientStore | None, view: View
    ) -> AbstractContextManager[Engine]:
        run, limit = config.run, config.failures.client_timeout
        if run.engine == "processes" and isinstance(run.workers, int):
            return ProcessEngine(for_workers(config, folder.clients), folder.path, run.workers, view.step, limit)
        if run.engine == "flower":
            return simulated(config, len(parts.partition.clients), folder.path, folder.clients, view.waiting)
        assert store is not None
        return nullcontext(InProcessEngine(parts.client, store, view.step, limit))
