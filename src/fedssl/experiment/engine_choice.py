"""Which engine is faster here: measured with this run's own training steps, not assumed."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch

from fedssl.core.files import size_text
from fedssl.core.memory import available_bytes, give_back, own_bytes
from fedssl.core.weights import Weights
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import ENGINES, ENGINES_OF_AUTO, Config, Run
from fedssl.federation.client import Client
from fedssl.federation.engines.processes import ClientSide
from fedssl.federation.local_training import train_locally
from fedssl.federation.worker_processes import worker_context

STEPS = 3  # enough for a choice between two engines
WORTH_IT = 120.0  # seconds: starting workers to measure them costs several
START_LIMIT = 120.0  # seconds until all workers must be ready to measure


@dataclass(frozen=True)
class EngineChoice:
    """The settings to run with, and why."""

    run: Run
    reason: str = ""


def choose_engine(
    config: Config, parts: Parts, side_of: Callable[[Config], ClientSide], total_steps: int
) -> EngineChoice:
    """Fills in `engine`, `workers` and `threads` where the settings leave them open; "" when there is no question."""
    run, sampled = config.run, config.client_sampling.clients_per_round or len(parts.partition.clients)
    workers = run.workers if isinstance(run.workers, int) else default_workers(parts.device, run.threads, sampled)
    if run.engine != "auto":
        return EngineChoice(ENGINES.find(run.engine, config.allow_code)().complete(run, workers))
    together, separate = (run.model_copy(update={"engine": name}) for name in ENGINES_OF_AUTO)
    separate = ENGINES[separate.engine]().complete(separate, workers)
    if workers < 2 or config.local_training.devices > 1:  # of which each client has them all
        return EngineChoice(together)
    here = seconds_per_step(parts.client, 0)
    if here * total_steps < WORTH_IT:
        return EngineChoice(together)
    if short := _short_of_memory(workers):
        return EngineChoice(together, short)
    each = _side_by_side(side_of(replace(config, run=separate)), workers)
    # A round is as long as its fullest worker.
    round_here, round_separate = sampled * here, -(-sampled // workers) * each
    measured = (
        f"one step takes {1000 * here:.0f} ms in one process with {torch.get_num_threads()} threads, "
        f"{1000 * each:.0f} ms in each of {workers} processes with {separate.threads}"
    )
    if round_separate < round_here:
        return EngineChoice(separate, f"{measured}: {workers} workers, {round_here / round_separate:.1f}x as fast")
    return EngineChoice(together, f"{measured}: one process is enough")


def _short_of_memory(workers: int) -> str:
    """Why workers cannot be had: each will hold what this process holds after a few steps; "" when they fit."""
    own = own_bytes()
    give_back()  # if it is workers that train, this process need not keep what its steps took
    available = available_bytes()
    if workers * own < available:
        return ""
    return (
        f"{workers} worker processes would need {size_text(workers * own)} and {size_text(available)} are left: "
        "clients train one after another"
    )


def default_workers(device: torch.device, threads: int, sampled: int) -> int:
    """One for each core (or each GPU), as far as a round has clients for them."""
    if device.type != "cpu":
        return min(torch.cuda.device_count(), sampled) if device.type == "cuda" else 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(cores // max(threads, 1), sampled), 1)


def seconds_per_step(client: Client, client_id: int, before: Callable[[], object] | None = None) -> float:
    """The mean over a few training steps, after one to warm up; tasks load their weights anew, so nothing is left."""
    settings = replace(client.training, epochs=1, devices=1)
    images, size = client.images_of(client_id), settings.batch_size
    chosen = images.index_select(0, torch.arange(STEPS * size) % len(images))
    _load_first(client)
    train_locally(client.method, chosen[:size], client.recipe, settings, settings.lr, 0)
    if before:
        before()
    started = time.perf_counter()
    train_locally(client.method, chosen, client.recipe, settings, settings.lr, 0)
    return (time.perf_counter() - started) / STEPS


def _load_first(client: Client) -> None:
    weights, method = client.first_weights, client.method
    pairs: list[tuple[Weights, torch.nn.Module | None]] = [
        (weights.online, method.online_encoder),
        (weights.predictor, method.predictor),
        (weights.target, method.target_encoder),
    ]
    for part, module in pairs:
        if module is not None:
            part.load_into(module)


def _side_by_side(side: ClientSide, workers: int) -> float:
    """Seconds a step when all workers train at the same time; infinite when they do not get that far."""
    context = worker_context()
    barrier, timings = context.Barrier(workers), context.Queue()
    processes = [
        context.Process(target=_measure, args=(side, number, barrier, timings), daemon=True)
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * START_LIMIT)
        process.kill()
    seconds = [timings.get(timeout=5) for process in processes if process.exitcode == 0]
    return max(seconds) if len(seconds) == workers else float("inf")


def _measure(side: ClientSide, number: int, barrier: Barrier, timings: "Queue[float]") -> None:
    client, _ = side(number)
    timings.put(seconds_per_step(client, 0, lambda: barrier.wait(START_LIMIT)))
