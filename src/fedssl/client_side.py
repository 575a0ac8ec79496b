"""The client's side of a run, made from its settings: in the run's own process, or again in each worker."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedssl.build import Parts, build
from fedssl.config import Config, Raw, resolve
from fedssl.data.images import fingerprint
from fedssl.engines.processes import ClientSide
from fedssl.federation.client import Client
from fedssl.federation.client_store import ClientStore
from fedssl.federation.rounds import Engine
from fedssl.networks.backbones import AllowCode

if TYPE_CHECKING:
    from fedssl.engines.flower_client import Side


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


def simulated(
    config: Config, clients: int, folder: Path, states: Path, waiting: Callable[[str], None]
) -> AbstractContextManager[Engine]:
    """An engine whose clients are actors of Flower's simulation; their states lie in `states`."""
    from fedssl.engines.flower_simulation import Resources, Simulation

    asked, limit = config.flower, config.failures.client_timeout
    resources = Resources(asked.cpus_per_client, asked.gpus_per_client, asked.ray_address)
    side = partial(_simulated_side, json.dumps(config.as_raw()), config.allow_code, states.absolute(), limit)
    return Simulation(clients, side, folder, {}, resources, waiting, limit)


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
    from fedssl.engines.flower_client import Side

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
