"""Target 3: the average of 5 clients' weights and the divergence of two, against passes over memory.

    python -m benchmarks.averaging

The paper's network: 38.46 M parameters a client; one thread. A pass over memory reads every client's weights once (a
sum is the cheapest reader) and, for the average, writes one new model (a copy is the cheapest writer). The process
keeps freed memory, as every process does that trains with fedssl.
"""

import torch
from torch import Tensor, nn

from benchmarks.measuring import Row, take_turns, within
from fedssl.core.memory import keep_freed_memory
from fedssl.core.weights import Average, Weights, divergence
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import HeadSizes

CLIENTS, REPEATS = 5, 7


def sent_by_a_client() -> nn.Module:
    """What the paper's network sends: online encoder and predictor."""
    method = BYOL(resnet18(3), 512, HeadSizes())
    return nn.ModuleDict({"encoder": method.online_encoder, "predictor": method.predictor})


def read(models: list[Weights]) -> list[Tensor]:
    return [tensor.sum() for weights in models for tensor in weights.tensors().values()]


def read_and_write(models: list[Weights]) -> tuple[list[Tensor], Weights]:
    return read(models[1:]), models[0].copy()


def averaged(models: list[Weights]) -> Weights:
    average = Average(CLIENTS)
    for weights in models:
        average.add(1, weights)
    return average.weights()


def rows() -> list[Row]:
    torch.set_num_threads(1)
    keep_freed_memory()
    models = [Weights.of(sent_by_a_client()) for _ in range(CLIENTS)]
    seconds, _ = take_turns(
        {
            "one pass": lambda: read_and_write(models),
            "average": lambda: averaged(models),
            "reading two": lambda: read(models[:2]),
            "divergence": lambda: divergence(models[0], models[1], "l2"),
        },
        REPEATS,
    )
    ms = {name: 1000 * value for name, value in seconds.items()}
    size = f"{CLIENTS} x {sum(p.numel() for p in models[0].parameters.values()) / 1e6:.2f} M"
    return [
        within(f"3 average, {size}", "read all, write one", "ms", ms["one pass"], ms["average"], 2),
        within("3 divergence of two", "read both", "ms", ms["reading two"], ms["divergence"], 3),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
