"""Clients of a round side by side in worker processes on one machine; weights go through memory-mapped files.

A task's global weights are written once a round and mapped by every worker; a client's upload stays in its own state
on disk until the server reads it. What goes through the pipes is small: numbers, paths, a method's payload.
"""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load, save

from fedssl.core.errors import FedsslError
from fedssl.core.files import UNFINISHED, storing
from fedssl.core.progress import Progress, silent
from fedssl.core.sealed import read_tensors, write_tensors
from fedssl.federation.client import Client, attempt
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import Failure, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.worker_processes import die_with_the_parent, worker_context

ClientSide = Callable[[int], tuple[Client, ClientStore]]
"""Makes the client's side of a run in a worker, given the worker's number; must survive pickling."""
START_LIMIT = 600.0  # seconds for a worker to load its images and make its networks
GRACE = 5.0  # seconds that a client gets to end by itself before its worker is ended


@dataclass(frozen=True)
class _Order:
    """A task on its way to a worker: its weights are in a file, its payload is bytes."""

    task: TrainTask
    weights: Path
    payload: bytes

    def unpack(self) -> TrainTask:
        weights = GlobalWeights.from_named(read_tensors(self.weights))
        return replace(self.task, global_weights=weights, payload=load(self.payload) if self.payload else {})


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    _: KW_ONLY
    task: TrainTask | None = None
    deadline: float = float("inf")
    ready: bool = False  # it has imported everything and made its networks


@dataclass(kw_only=True, eq=False)
class ProcessEngine:
    """Starts its workers with the first round; leaving the block ends them."""

    side: ClientSide
    folder: Path
    workers: int
    progress: Progress = silent
    time_limit: float | None = None

    def __post_init__(self) -> None:
        self._workers: list[_Worker] = []
        self._busy = 0.0  # seconds that workers spent on tasks, as they measured it themselves
        self.idle_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._workers = []

    def run_tasks(self, tasks: list[TrainTask]) -> Iterator[TrainResult | Failure]:
        begun = time.perf_counter()
        waiting, files = deque(tasks), self._write_weights(tasks)
        self._workers += [self._start(number) for number in range(len(self._workers), min(self.workers, len(tasks)))]
        before = self._busy
        try:
            while waiting or any(worker.task for worker in self._workers):
                for worker in self._workers:
                    if worker.task is None and waiting:
                        self._assign(worker, waiting.popleft(), files)
                yield from self._replies()
        finally:
            self.idle_seconds += time.perf_counter() - begun - (self._busy - before) / max(len(self._workers), 1)
            for path in set(files.values()):
                path.unlink(missing_ok=True)

    def _write_weights(self, tasks: list[TrainTask]) -> dict[int, Path]:
        """One file for each set of weights that the tasks carry: for all of them, as a rule."""
        files: dict[int, Path] = {}
        for task in tasks:
            weights = task.global_weights
            if id(weights) not in files:
                path = self.folder / f"weights-{len(files)}.{os.getpid()}{UNFINISHED}"
                with storing(path, weights.num_bytes()):
                    write_tensors(path, weights.named())
                files[id(weights)] = path
        return files

    def _start(self, number: int) -> _Worker:
        context = worker_context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, self.side, number, self.time_limit), name=f"fedssl worker {number}", daemon=True
        )
        process.start()
        theirs.close()  # so that its end is noticed here
        return _Worker(process, ours)

    def _assign(self, worker: _Worker, task: TrainTask, files: dict[int, Path]) -> None:
        worker.task, worker.deadline = task, self._deadline(worker)
        light = replace(task, global_weights=GlobalWeights.EMPTY, payload={})
        order = _Order(light, files[id(task.global_weights)], save(task.payload) if task.payload else b"")
        with contextlib.suppress(OSError):  # a worker that has just died is noticed when its reply is awaited
            worker.connection.send(order)

    def _deadline(self, worker: _Worker) -> float:
        """A client's time begins when its worker is ready; coming to life has a limit of its own."""
        limit = START_LIMIT if not worker.ready else self.time_limit
        return float("inf") if limit is None else time.monotonic() + limit + GRACE

    def _replies(self) -> Iterator[TrainResult | Failure]:
        """What came in since; a worker that died or does not end gives a failure and is replaced."""
        busy = {worker.connection: worker for worker in self._workers if worker.task}
        for connection in wait(list(busy), timeout=1.0):
            worker = busy[connection]  # type: ignore[index]
            try:
                kind, content = worker.connection.recv()
            except (EOFError, OSError):
                worker.process.join(GRACE)
                yield self._lost(worker, "exception", f"its process ended with code {worker.process.exitcode}")
                continue
            if kind == "ready":
                worker.ready = True
                worker.deadline = self._deadline(worker)
            elif kind == "step":
                self.progress(*content)
            elif kind == "error":
                raise content
            elif kind == "reply":
                yield self._finished(worker, *content)
        for worker in self._workers:
            if worker.task and time.monotonic() > worker.deadline:
                waited = self.time_limit if worker.ready else START_LIMIT
                yield self._lost(worker, "timeout", f"no end after {waited:g} s: its process was ended")

    def _finished(
        self, worker: _Worker, reply: TrainResult | Failure, payload: bytes, seconds: float
    ) -> TrainResult | Failure:
        worker.task, worker.deadline = None, float("inf")
        self._busy += seconds
        return replace(reply, payload=load(payload)) if isinstance(reply, TrainResult) and payload else reply

    def _lost(self, worker: _Worker, code: Any, detail: str) -> Failure:
        task, number = worker.task, self._workers.index(worker)
        assert task is not None
        _end(worker)
        self._workers[number] = self._start(number)
        return Failure(task.client_id, task.round_number, code, detail=detail)


def _end(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.terminate()
    worker.process.join(GRACE)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _work(connection: Connection, side: ClientSide, number: int, time_limit: float | None) -> None:
    """A worker's life: make the client's side once, then one task after another until the pipe closes."""
    die_with_the_parent()
    for name in ("SIGINT", "SIGHUP"):  # Ctrl-C and a closed terminal go to the whole group; the parent decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def tell(text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        connection.send(("step", (text, done, total, client, images)))

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            client, store = side(number)
            connection.send(("ready", None))
            while True:
                order = connection.recv()
                started = time.perf_counter()
                reply = attempt(client, store, order.unpack(), tell, time_limit)
                connection.send(("reply", (*_packed(reply), time.perf_counter() - started)))
        except FedsslError as error:  # a disk that refuses, data that cannot be read: the run's business
            connection.send(("error", error))


def _packed(reply: TrainResult | Failure) -> tuple[TrainResult | Failure, bytes]:
    if isinstance(reply, TrainResult) and reply.payload:
        return replace(reply, payload={}), save(reply.payload)
    return reply, b""
