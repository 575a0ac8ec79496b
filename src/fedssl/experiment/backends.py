"""Where the clients of a run are: what is built on this machine, who carries the tasks, whose states lie here."""

import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from fedssl.core.extras import need
from fedssl.core.progress import Progress, Say
from fedssl.core.registry import AllowCode
from fedssl.data.dataset import fingerprint
from fedssl.experiment.build.parts import Parts, build
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import ENGINES, Config, Raw, Run
from fedssl.experiment.engine_choice import Choice, choose_engine
from fedssl.experiment.progress.views import View
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.federation.client import Client
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.engines.processes import ClientSide, ProcessEngine
from fedssl.federation.rounds import Engine

if TYPE_CHECKING:
    from fedssl.federation.engines.flower.client_app import Side


class Running(Protocol):
    """What an engine may know of the run that it is opened for."""

    config: Config
    parts: Parts
    folder: RunFolder
    store: ClientStore | None
    view: View


class Backend(Protocol):
    """Where the clients of a run are."""

    def build(self, config: Config, progress: Progress) -> Parts: ...

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> Choice:
        """Fills in what the settings leave open about the engine."""

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        """The clients' states, as far as they lie on this machine."""

    def engine(self, run: Running) -> AbstractContextManager[Engine]: ...


class OneMachine:
    """All clients here (or on a Ray cluster that shares the disk), with their images and states."""

    def build(self, config: Config, progress: Progress) -> Parts:
        if config.run.engine != "auto":
            _carrier(config).check()
        return build(config, progress)

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> Choice:
        return choose_engine(config, parts, partial(for_workers, folder=folder.clients), total_steps)

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        return client_store(config, parts, folder.clients)

    def engine(self, run: Running) -> AbstractContextManager[Engine]:
        return _carrier(run.config).open(run)


class Carrier(ABC):
    """How the tasks of a run on one machine are carried out: what an entry of ENGINES is."""

    def check(self) -> None:  # noqa: B027
        """Refuses, before anything is built, where something is missing."""

    def complete(self, run: Run, workers: int) -> Run:  # noqa: ARG002
        """The settings with what it decides about them; `workers` processes would be used here."""
        return run

    @abstractmethod
    def open(self, run: Running) -> AbstractContextManager[Engine]: ...


def _carrier(config: Config) -> Carrier:
    made: Carrier = ENGINES.find(config.run.engine, config.allow_code)()
    return made


class OneByOne(Carrier):
    """Clients one after another in this process."""

    def open(self, run: Running) -> AbstractContextManager[Engine]:
        assert run.store is not None
        limit = run.config.failures.client_timeout
        return nullcontext(InProcessEngine(run.parts.client, run.store, run.view.step, limit))


class SideBySide(Carrier):
    """Clients in worker processes."""

    def complete(self, run: Run, workers: int) -> Run:
        return run.model_copy(update={"workers": workers, "threads": max(run.threads, 1)})

    def open(self, run: Running) -> AbstractContextManager[Engine]:
        workers, limit = run.config.run.workers, run.config.failures.client_timeout
        assert isinstance(workers, int)
        side, path = for_workers(run.config, run.folder.clients), run.folder.path
        return ProcessEngine(side=side, folder=path, workers=workers, watch=run.view.step, time_limit=limit)


class Simulated(Carrier):
    """Clients as actors of Flower's simulation."""

    def check(self) -> None:
        need("flower", "engine", also=("ray",))

    def complete(self, run: Run, workers: int) -> Run:  # noqa: ARG002
        # An actor has one CPU as a rule, and other threads give other bits.
        return run.model_copy(update={"threads": max(run.threads, 1)})

    def open(self, run: Running) -> AbstractContextManager[Engine]:
        clients, folder = len(run.parts.partition.clients), run.folder
        return simulated(run.config, clients, folder.path, folder.clients, run.view.waiting)


def client_store(config: Config, parts: Parts, folder: Path) -> ClientStore:
    """The states in `folder`, each bound to the images of its client."""

    @cache
    def images() -> str:
        return fingerprint(parts.dataset.train)

    @cache
    def data_of(client_id: int) -> str:
        return sha256(images().encode() + parts.partition.clients[client_id].tobytes()).hexdigest()

    return ClientStore(folder, config.run.keep_checkpoints, data_of)


def for_workers(config: Config, folder: Path) -> ClientSide:
    """What a worker process calls with its number to have a client's side of its own."""
    return partial(_in_worker, config.as_raw(), config.allow_code, folder)


def simulated(config: Config, clients: int, folder: Path, states: Path, waiting: Say) -> AbstractContextManager[Engine]:
    """An engine whose clients are actors of Flower's simulation; their states lie in `states`."""
    from fedssl.federation.engines.flower.simulation import Resources, Simulation

    settings, limit = config.flower, config.failures.client_timeout
    resources = Resources(settings.cpus_per_client, settings.gpus_per_client, settings.ray_address)
    side = partial(_simulated_side, json.dumps(config.as_raw()), config.allow_code, states.absolute(), limit)
    return Simulation(
        clients=clients, open_side=side, folder=folder, resources=resources, waiting=waiting, time_limit=limit
    )


@cache
def _in_actor(raw: str, allow_code: tuple[str, ...], states: Path) -> tuple[Client, ClientStore]:
    """Made once in each actor, however many tasks it gets."""
    return _in_worker(json.loads(raw), allow_code, states, 0)


def _simulated_side(
    raw: str,
    allow_code: tuple[str, ...],
    states: Path,
    limit: float | None,
    node: Raw,  # noqa: ARG001
    about: Raw,  # noqa: ARG001
) -> "Side":
    from fedssl.federation.engines.flower.client_app import Side

    return Side(*_in_actor(raw, allow_code, states), states.parent / "failures-at-clients.jsonl", limit)


def _in_worker(raw: Raw, allow_code: AllowCode, folder: Path, number: int) -> tuple[Client, ClientStore]:
    raw = raw | {"device": _device_of_worker(raw["device"], number)}
    config = resolve(raw, allow_code)
    torch.set_num_threads(max(config.run.threads, 1))
    parts = build(config)
    return parts.client, client_store(config, parts, folder)


def _device_of_worker(device: str, number: int) -> str:
    """Workers share out the GPUs of the machine, unless one is named."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{number % torch.cuda.device_count()}"
    return device
