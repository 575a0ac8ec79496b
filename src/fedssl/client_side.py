"""The client's side of a run, made from its settings: in the run's own process, or again in each worker."""

from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import torch

from fedssl.build import Parts, build
from fedssl.config import Config, Raw, resolve
from fedssl.data.images import fingerprint
from fedssl.engines.processes import ClientSide
from fedssl.federation.client import Client
from fedssl.federation.client_store import ClientStore


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
    return partial(_in_worker, config.as_raw(), folder)


def _in_worker(raw: Raw, folder: Path, number: int) -> tuple[Client, ClientStore]:
    raw = raw | {"device": _device_of_worker(raw["device"], number)}
    config = resolve(raw)
    torch.set_num_threads(max(config.run.threads, 1))
    parts = build(config)
    return parts.client, client_store(config, parts, folder)


def _device_of_worker(device: str, number: int) -> str:
    """Workers share out the GPUs of the machine, unless one is named."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{number % torch.cuda.device_count()}"
    return device
