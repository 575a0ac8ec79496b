"""Where the clients of a run are: what is built on this machine, who carries the tasks, whose states lie here."""

import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.core.progress import Progress
from fedssl.core.registry import AllowCode
from fedssl.data.dataset import fingerprint
from fedssl.experiment.build.parts import Parts, build
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import ENGINES, Config, Raw, Run
from fedssl.experiment.engine_choice import EngineChoice, choose_engine
from fedssl.experiment.progress.views import View
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.federation.client import Client
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.engines.processes import ClientSide, ProcessEngine
from fedssl.federation.messages import EVALUATE
from fedssl.federation.rounds import Engine
from fedssl.federation.site_evaluation import SiteEvaluation, common, count_terms

if TYPE_CHECKING:
    from fedssl.federation.engines.flower.client_app import Side
    from fedssl.federation.secure.client_side import SecureClient
    from fedssl.federation.secure.keys import Roster
    from fedssl.federation.secure.server_side import SecureServer

KEYS = "keys"  # of the clients of one machine, beside their states


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

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> EngineChoice:
        """Fills in what the settings leave open about the engine."""

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        """The clients' states, as far as they lie on this machine."""

    def engine(self, run: Running) -> AbstractContextManager[Engine]: ...

    def secure(self, run: Running) -> "SecureServer | None":
        """The server's part in secure sums; None where uploads are averaged as they are."""


class OneMachine:
    """All clients here (or on a Ray cluster that shares the disk), with their images and states."""

    def build(self, config: Config, progress: Progress) -> Parts:
        if config.run.engine != "auto":
            carrier = _carrier(config)
            carrier.check()
            if config.local_training.devices > 1 and not carrier.several_devices:
                raise FedsslError(
                    f"local_training.devices: with engine = {config.run.engine!r} clients share the devices out: use "
                    "'in-process', where each client has them all"
                )
        return build(config, progress)

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> EngineChoice:
        return choose_engine(config, parts, partial(for_workers, folder=folder.clients), total_steps)

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        return client_store(config, parts, folder.clients)

    def engine(self, run: Running) -> AbstractContextManager[Engine]:
        return _carrier(run.config).open(run)

    def secure(self, run: Running) -> "SecureServer | None":
        """Clients of one machine have keys of their own and sign, as sites do."""
        if run.parts.client.terms is None:
            return None
        from fedssl.federation.secure.client_side import make_identities

        names = _names(len(run.parts.partition.clients))
        roster = make_identities(run.folder.clients / KEYS, names)
        return secure_server(run, names, roster)


def secure_server(run: Running, names: list[str], roster: "Roster", id_: str = "") -> "SecureServer":
    """By the terms of the run; `id_` names it to the clients, unless its folder may."""
    from fedssl.federation.secure.server_side import SecureServer

    terms = run.parts.client.terms
    assert terms is not None
    retries = run.config.failures.retries
    return SecureServer(
        terms=terms,
        names=names,
        roster=roster,
        file=run.folder.secure,
        common=run.parts.client.common,
        retries=retries,
        run=id_,
    )


def site_evaluation(run: Running, engine: Engine, secure: "SecureServer | None") -> SiteEvaluation:
    """Asks the clients of a run for their counts; a secure sum of these has keys and a memory of its own."""
    parts, sums = run.parts, None
    if secure is not None and parts.client.terms is not None:
        sums = replace(
            secure,
            terms=count_terms(parts.client.terms, parts.server.num_clients),
            file=run.folder.secure.with_name("secure-evaluation.json"),
            common=partial(common, parts.client.terms),
            run=f"{secure.run}/evaluation",
            prefix=EVALUATE,
            _adverts={},
            _informed={},
        )
    return SiteEvaluation(engine=engine, num_clients=parts.server.num_clients, wire=parts.server.wire, secure=sums)


def _names(clients: int) -> list[str]:
    """By which the clients of one machine sign."""
    return [f"client-{number:05d}" for number in range(clients)]


class Carrier(ABC):
    """How the tasks of a run on one machine are run: what an entry of ENGINES is."""

    several_devices: ClassVar[bool] = True  # may one client train on several?

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
        return nullcontext(InProcessEngine(run.parts.client, run.store, run.view.progress, limit))


class SideBySide(Carrier):
    """Clients in worker processes."""

    several_devices: ClassVar[bool] = False  # they run side by side, and a worker may have no processes of its own

    def complete(self, run: Run, workers: int) -> Run:
        return run.model_copy(update={"workers": workers, "threads": max(run.threads, 1)})

    def open(self, run: Running) -> AbstractContextManager[Engine]:
        workers, limit = run.config.run.workers, run.config.failures.client_timeout
        assert isinstance(workers, int)
        side, path = for_workers(run.config, run.folder.clients), run.folder.path
        return ProcessEngine(side=side, folder=path, workers=workers, progress=run.view.progress, time_limit=limit)


class Simulated(Carrier):
    """Clients as actors of Flower's simulation."""

    def check(self) -> None:
        need("flower", "engine", also=("ray",))

    def complete(self, run: Run, workers: int) -> Run:  # noqa: ARG002
        # An actor has one CPU as a rule, and other threads give other bits.
        return run.model_copy(update={"threads": max(run.threads, 1)})

    def open(self, run: Running) -> AbstractContextManager[Engine]:
        clients, folder = len(run.parts.partition.clients), run.folder
        return simulated(run.config, clients, folder.path, folder.clients, run.view)


def client_store(config: Config, parts: Parts, folder: Path) -> ClientStore:
    """The states in `folder`, each bound to the images of its client."""

    @cache
    def images() -> str:
        return fingerprint(parts.dataset.train)

    @cache
    def data_of(client_id: int) -> str:
        return sha256(images().encode() + parts.partition.clients[client_id].tobytes()).hexdigest()

    return ClientStore(
        folder, keep=config.run.keep_checkpoints, data_of=data_of, secure=_secure_client(parts, folder / KEYS)
    )


def _secure_client(parts: Parts, keys: Path) -> "SecureClient | None":
    if parts.client.terms is None:
        return None
    from fedssl.federation.secure.client_side import ROSTER, SecureClient
    from fedssl.federation.secure.keys import Identity, read_roster

    return SecureClient(
        names=_names(len(parts.partition.clients)),
        identity=lambda name: Identity.read(keys / f"{name}.key", name),
        roster=cache(lambda: read_roster(keys / ROSTER)),
        least=parts.client.terms.threshold,
    )


def for_workers(config: Config, folder: Path) -> ClientSide:
    """What a worker process calls with its number to have a client's side of its own."""
    return partial(_in_worker, config.as_raw(), config.allow_code, folder)


def simulated(config: Config, clients: int, folder: Path, states: Path, view: View) -> AbstractContextManager[Engine]:
    """An engine whose clients are actors of Flower's simulation; their states lie in `states`."""
    from fedssl.federation.engines.flower.simulation import Resources, Simulation

    settings, limit = config.flower, config.failures.client_timeout
    resources = Resources(settings.cpus_per_client, settings.gpus_per_client, settings.ray_address)
    side = partial(_simulated_side, json.dumps(config.as_raw()), config.allow_code, states.absolute(), limit)
    return Simulation(
        clients=clients,
        open_side=side,
        folder=folder,
        resources=resources,
        waiting=view.waiting,
        presence=view.presence,
        time_limit=limit,
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
