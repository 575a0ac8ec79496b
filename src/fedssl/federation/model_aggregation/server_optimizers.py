"""Server optimizers (FedOpt): a round's average update taken as a gradient, with memory from round to round."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssl.core.sealed import under
from fedssl.core.settings import Fraction, Positive
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, Memory, joined, parted
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Aggregator):
    """W_g moves by what an optimizer makes of delta = sum_k (n_k / n) W_k − W_g; buffers are the average itself.

    Reads every upload once and holds one at a time, and what is remembered.
    """

    needs_single_uploads: ClassVar[bool] = False

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        """As in a first round, when nothing is remembered."""
        return self._moved(results, previous, {})[0]

    def advance(
        self, results: Sequence[TrainResult], previous: GlobalWeights, memory: Memory
    ) -> tuple[GlobalWeights, Memory]:
        self.check(len(results))
        ordered = sorted(results, key=lambda result: result.client_id)
        moved, remembered = self._moved(ordered, joined(previous), memory)
        return parted(moved), remembered

    def _moved(self, results: Sequence[TrainResult], previous: Weights, memory: Memory) -> tuple[Weights, Memory]:
        average = WeightedAverage().combine(results, previous)
        moved, remembered = {}, Memory()
        for name, origin in previous.parameters.items():
            exact = torch.promote_types(origin.dtype, torch.float32)
            step, kept = self.step(average.parameters[name].to(exact) - origin, under(f"{name}/", memory))
            moved[name] = (origin + step).to(origin.dtype)
            remembered |= {f"{name}/{slot}": tensor for slot, tensor in kept.items()}
        return Weights(moved, average.buffers), remembered

    @abstractmethod
    def step(self, delta: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """How far one tensor moves, and what is remembered of it; `memory` is empty in the first round."""


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """Server momentum: v ← momentum · v + delta, W_g ← W_g + lr · v (Hsu et al., 2019); momentum 0 is the average."""

    departs = "on parameters; BatchNorm statistics are the average itself"

    lr: Positive = 1.0
    momentum: Fraction = 0.9

    def step(self, delta: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        velocity = self.momentum * memory["velocity"] + delta if memory else delta
        return self.lr * velocity, {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerOptimizer):
    """m ← b1 m + (1 − b1) delta, v ← b2 v + (1 − b2) delta², W_g ← W_g + lr · m / (√v + tau) (Reddi et al., 2021)."""

    departs = "on parameters; BatchNorm statistics are the average itself; lr is 0.01, v starts at tau²"

    lr: Positive = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: Positive = 1e-3

    def step(self, delta: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        first = memory.get("first", torch.zeros_like(delta)).lerp(delta, 1 - self.beta1)
        second = memory.get("second", torch.full_like(delta, self.tau**2)).lerp(delta.square(), 1 - self.beta2)
        return self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}
