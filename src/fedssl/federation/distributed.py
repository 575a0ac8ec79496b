"""One client's training on several devices of its machine: a process for each, their gradients averaged by PyTorch's
DistributedDataParallel.

Every process sees the whole batch and makes the same views of it. The backbone computes its own part of a batch and
gathers the features of all parts, so heads and loss see the whole batch, as on one device: contrastive losses keep
their negatives. BatchNorm inside a backbone sees the whole batch on GPUs (SyncBatchNorm); on the CPU, where PyTorch has
none, each process normalises its own part, and the statistics that are kept are those of the first process.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fedssl.core.errors import reason
from fedssl.core.progress import Progress, silent
from fedssl.core.stopwatch import Stopwatch
from fedssl.data.dataset import Pixels
from fedssl.federation.local_training import LocalTraining, TrainingReport, train_locally, training_mode
from fedssl.federation.messages import ClientError
from fedssl.federation.regularizers import Loss
from fedssl.federation.worker_processes import die_with_the_parent, worker_context
from fedssl.methods.base import SiameseMethod

START_LIMIT = 600.0  # seconds for all processes to find each other
QUIET_LIMIT = 1800.0  # seconds without a step: a process that waits for another one for ever
GRACE = 5.0  # seconds to end
GONE = 0.5  # seconds until the end of a process is known
STATE = "state/"  # before the names of what a module saves itself


def train_on_devices(
    method: SiameseMethod,
    pixels: Pixels,
    settings: LocalTraining,
    *,
    progress: Progress = silent,
    clock: Stopwatch | None = None,
    **same: Any,
) -> TrainingReport:
    """As `train_locally`, by `settings.devices` processes; one that dies ends them all and is the client's failure."""
    images = pixels.index_select(0, torch.arange(len(pixels)))  # this client's only; the processes share them
    training = {"pixels": images, "settings": replace(settings, devices=1), **same}
    with (clock or Stopwatch()).part("steps"), tempfile.TemporaryDirectory() as folder:
        job = (deepcopy(method).cpu(), training, settings.devices, Path(folder) / "meeting", torch.get_num_threads())
        with _processes(job, settings.devices, next(method.parameters()).device) as workers:
            report, trained = _followed(workers, progress)
    _take_over(method, trained)
    return report


@contextmanager
def _processes(job: tuple[Any, ...], count: int, device: torch.device) -> Iterator[dict[Connection, BaseProcess]]:
    """One process for each device; none outlives the block."""
    context, workers = worker_context(), dict[Connection, BaseProcess]()
    try:
        for rank in range(count):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(theirs, rank, str(device), *job), daemon=True)
            process.start()
            theirs.close()  # so that its end is noticed here
            workers[ours] = process
        yield workers
    finally:
        for connection, process in workers.items():
            connection.close()
            process.kill()
            process.join(GRACE)


def _followed(workers: dict[Connection, BaseProcess], progress: Progress) -> tuple[TrainingReport, dict[str, Tensor]]:
    """Waits for what the first process sends at the end; every step is told, so that a time limit can end it."""
    deadline = time.monotonic() + START_LIMIT
    while True:
        for connection in wait(list(workers), timeout=1.0):
            kind, content = _received(connection, workers)  # type: ignore[arg-type]
            if kind == "trained":
                report, saved = content
                return report, load(saved)
            if kind == "error":
                raise _failure(_dead(workers) or content)
            deadline = time.monotonic() + QUIET_LIMIT
            text, done, total, images = content
            progress(text, done, total, images=images)
        if time.monotonic() > deadline:
            raise ClientError("timeout", "local_training.devices: a process waits for another one for ever")


def _received(connection: Connection, workers: dict[Connection, BaseProcess]) -> tuple[str, Any]:
    try:
        kind, content = connection.recv()
    except (EOFError, OSError):
        raise _failure(_dead(workers) or "a process ended") from None
    return kind, content


def _dead(workers: dict[Connection, BaseProcess]) -> str:
    """Who died, in words: the others fail only because they miss it, and may say so first."""
    time.sleep(GONE)
    for rank, process in enumerate(workers.values()):
        if process.exitcode is not None:
            return f"the process of device {rank} ended with code {process.exitcode}"
    return ""


def _failure(text: str) -> ClientError:
    return ClientError("exception", f"local_training.devices: {text}")


def _take_over(method: SiameseMethod, trained: dict[str, Tensor]) -> None:
    """All that training changed: weights, buffers, and tensors that a method keeps as plain attributes."""
    state = {name.removeprefix(STATE): tensor for name, tensor in trained.items() if name.startswith(STATE)}
    method.load_state_dict(state)
    for name in trained.keys() - {f"{STATE}{one}" for one in state}:
        setattr(method, name, trained[name])


def _work(
    connection: Connection,
    rank: int,
    device: str,
    method: SiameseMethod,
    training: dict[str, Any],
    count: int,
    meeting: Path,
    threads: int,
) -> None:
    """A process's life: meet the others, train together, and the first sends what came of it."""
    die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    torch.set_num_threads(max(threads // count, 1) if device == "cpu" else threads)
    try:
        _meet(rank, count, device, meeting)
        place = torch.device(device if device == "cpu" else f"cuda:{rank}")
        tell = silent if rank else lambda *counts, images: connection.send(("step", (*counts, images)))
        own = deepcopy(method).to(place)  # what came over may be memory that all processes share
        report = _train(own, training, tell, rank, count)
        if rank == 0:
            connection.send(("trained", (report, _result(own))))
        connection.recv()  # until the parent ends all: a process that left earlier would look like one that died
    except EOFError:
        os._exit(0)
    except Exception as error:
        connection.send(("error", f"device {rank}: {reason(error)}"))
        connection.recv()


def _meet(rank: int, count: int, device: str, meeting: Path) -> None:
    """On this machine alone: no port is opened to others."""
    backend, loopback = ("gloo" if device == "cpu" else "nccl"), ("lo0" if sys.platform == "darwin" else "lo")
    os.environ[f"{backend.upper()}_SOCKET_IFNAME"] = loopback
    limit = timedelta(seconds=START_LIMIT)
    dist.init_process_group(backend, f"file://{meeting}", rank=rank, world_size=count, timeout=limit)


def _train(
    method: SiameseMethod, training: dict[str, Any], tell: Callable[..., None], rank: int, count: int
) -> TrainingReport:
    on_gpu = next(method.parameters()).is_cuda
    for encoder in filter(None, (method.online_encoder, method.target_encoder)):
        if on_gpu:
            convert = nn.SyncBatchNorm.convert_sync_batchnorm
            encoder.backbone = convert(encoder.backbone)  # type: ignore[no-untyped-call]
        share(encoder.backbone, rank, count)
    settings: LocalTraining = training["settings"]
    training_mode(method, settings)  # what is frozen must be so before gradients are joined
    loss = _LossOf(method, settings.loss_of(method, training.get("received")))
    joined = DistributedDataParallel(loss, device_ids=[rank] if on_gpu else None)
    report = train_locally(method, **training, progress=tell, loss=joined)
    spent = torch.tensor(time.process_time(), device=next(method.parameters()).device)
    dist.all_reduce(spent)
    return replace(report, core_seconds_elsewhere=float(spent))


def _result(method: SiameseMethod) -> bytes:
    """As safetensors: nothing that could run."""
    plain = {name: value for name, value in vars(method).items() if isinstance(value, Tensor)}
    tensors = {f"{STATE}{name}": value for name, value in method.state_dict().items()} | plain
    whole = torch.contiguous_format
    return save({name: value.detach().cpu().clone(memory_format=whole) for name, value in tensors.items()})


class _LossOf(nn.Module):
    """A loss as a forward pass, which is what DistributedDataParallel watches."""

    def __init__(self, method: SiameseMethod, loss: Loss) -> None:
        super().__init__()
        self.method, self.loss = method, loss

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        return self.loss(views)


def share(backbone: nn.Module, rank: int, count: int) -> None:
    """From now on a batch is shared by all processes: each computes its part, and all have the features of all."""
    lengths: list[int] = []

    def own_part(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images = inputs[0]  # B x C x H x W
        lengths.append(len(images))
        size = -(-len(images) // count)
        rows = torch.arange(rank * size, (rank + 1) * size, device=images.device) % len(images)  # the rest: repeated
        return (images.index_select(0, rows), *inputs[1:])

    def all_parts(_: nn.Module, __: object, features: Tensor) -> Tensor:
        gathered: Tensor = _Gather.apply(features, rank, count)  # type: ignore[no-untyped-call]
        return gathered[: lengths.pop()]

    backbone.register_forward_pre_hook(own_part)
    backbone.register_forward_hook(all_parts)


class _Gather(torch.autograd.Function):
    """The features of all processes, in order.

    All of them compute the same loss, so each has the gradient of its own part at hand; times `count`, because
    DistributedDataParallel takes the mean of what is a sum here.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, rank: int, count: int) -> Tensor:
        ctx.rank, ctx.count, ctx.size = rank, count, len(features)
        features = features.contiguous()
        parts = [torch.empty_like(features) for _ in range(count)]
        dist.all_gather(parts, features)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        own = gradients[0][ctx.rank * ctx.size : (ctx.rank + 1) * ctx.size]
        return own * ctx.count, None, None
