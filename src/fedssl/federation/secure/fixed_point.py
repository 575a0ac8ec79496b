"""Updates as whole numbers of a step in the ring Z_2^32, where sums are exact and masks are uniform.

Of n clients each may send up to (2^31 − 1) // n steps to either side: the sum of all of them does not wrap.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.core.errors import FedsslError, RoundError
from fedssl.core.weights import Weights
from fedssl.federation.messages import ClientError, Scalars

Vector = NDArray[np.uint32]
Exact = NDArray[np.float64]
LARGEST = 2**31 - 1
AT_ONCE = 2**18  # values that are converted together, so that memory does not grow with a tensor
EXAMPLES = "num_examples"  # n_k: the first of the sums


@dataclass(frozen=True)
class Entry:
    """Some values of the vector; `limit` is the largest magnitude a client may send, None stands for whole numbers."""

    name: str
    size: int
    limit: float | None


Parts = list[tuple[Entry, Vector]]


@dataclass(frozen=True)
class Layout:
    """What the vector holds, in order: the tensors' updates n_k · (W_k − W_g) / n_max, then n_k, then other sums."""

    clients: int
    most_examples: int  # n_max: no client may count more
    tensors: tuple[Entry, ...]
    sums: tuple[Entry, ...]

    @property
    def levels(self) -> int:
        """How many steps a client may go to either side: what is left to it after the guard bits of n clients."""
        return LARGEST // self.clients

    def step(self, entry: Entry) -> float:
        """The grain of what is sent: a client's value is off by half of it at most, a sum of n by n halves."""
        return 1.0 if entry.limit is None else entry.limit / self.levels

    @cached_property
    def length(self) -> int:
        return sum(entry.size for entry in (*self.tensors, *self.sums))

    def parts(self, vector: Vector) -> tuple[Parts, Parts]:
        """Each tensor and each sum with its part of the vector, which is not copied."""
        ends = np.cumsum([entry.size for entry in (*self.tensors, *self.sums)])
        parts = list(zip((*self.tensors, *self.sums), np.split(vector, ends[:-1]), strict=True))
        return parts[: len(self.tensors)], parts[len(self.tensors) :]


@dataclass(frozen=True)
class Total:
    """What a sum of vectors says: the averaged weights, n, and the other sums."""

    weights: Weights
    num_examples: int
    sums: Scalars


def layout_of(
    like: Weights,
    clients: int,
    most_examples: int,
    limit: float,
    statistics_limit: float,
    sums: Mapping[str, float | None] | None = None,
) -> Layout:
    """For weights like these: `limit` of a parameter's update, `statistics_limit` of a floating buffer's.

    Integer counters are no part of it. `sums` are numbers that each client adds, with their limits.
    """
    tensors = [*_entries(like.parameters, limit), *_entries(like.buffers, statistics_limit)]
    wanted = [Entry(EXAMPLES, 1, None), *(Entry(name, 1, most) for name, most in sorted((sums or {}).items()))]
    layout = Layout(clients, most_examples, tuple(tensors), tuple(wanted))
    if clients < 2 or not 1 <= most_examples <= layout.levels:
        raise FedsslError(
            f"secure aggregation: {clients} clients of up to {most_examples} images: needs 2 or more clients, and "
            f"their images together may be {LARGEST} at most"
        )
    for entry in (*layout.tensors, *layout.sums):
        if entry.limit is not None and not (math.isfinite(entry.limit) and entry.limit > 0):
            raise FedsslError(f"secure aggregation: the limit of {entry.name} is {entry.limit}: give a number above 0")
    return layout


def _entries(tensors: Mapping[str, Tensor], limit: float) -> list[Entry]:
    return [Entry(name, one.numel(), limit) for name, one in tensors.items() if one.is_floating_point()]


def encode(layout: Layout, trained: Weights, origin: Weights, examples: int, sums: Mapping[str, float]) -> Vector:
    """A client's vector; ClientError for what is NaN, infinite or beyond its limit, and names it."""
    if not 1 <= examples <= layout.most_examples:
        raise ClientError("refused", f"{EXAMPLES}: {examples} images, the run counts 1 to {layout.most_examples}")
    after, before, share = trained.tensors(), origin.tensors(), examples / layout.most_examples
    numbers = {**sums, EXAMPLES: examples}
    vector = np.empty(layout.length, np.uint32)
    tensors, others = layout.parts(vector)
    for entry, part in tensors:
        for start, update in _updates(after[entry.name], before[entry.name]):
            part[start : start + update.size] = _in_steps(layout, entry, update * share)
    for entry, part in others:
        part[:] = _in_steps(layout, entry, np.array([numbers[entry.name]], np.float64))
    return vector


def _updates(trained: Tensor, origin: Tensor) -> Iterator[tuple[int, Exact]]:
    """W_k − W_g in float64, a piece at a time, with where it begins."""
    pieces = zip(*(torch.split(one.reshape(-1), AT_ONCE) for one in (trained, origin)), strict=True)
    for number, (after, before) in enumerate(pieces):
        yield number * AT_ONCE, (after.double() - before.double()).numpy()


def _in_steps(layout: Layout, entry: Entry, values: Exact) -> Vector:
    largest = float(np.abs(values).max(initial=0.0))  # NaN if there is one
    if not math.isfinite(largest):
        raise ClientError("non-finite", f"{entry.name}: NaN or infinite: nothing was sent")
    most = layout.levels if entry.limit is None else entry.limit
    if largest > most:
        raise ClientError(
            "refused",
            f"{entry.name}: {largest:.3g} is beyond {most:.3g}, the limit of secure aggregation: nothing was sent; "
            "raise the limit for all clients",
        )
    return np.rint(values / layout.step(entry)).astype(np.int32).view(np.uint32)


def decode(layout: Layout, vector: Vector, origin: Weights, divisor: int | None = None) -> Total:
    """W_g + n_max · sum / n from the sum of all vectors; integer counters stay as they are in `origin`.

    `divisor`: divides instead of n.
    """
    if vector.size != layout.length:
        raise FedsslError(f"secure aggregation: a sum of {vector.size} values, expected {layout.length}")
    tensors, others = layout.parts(vector)
    sums = {entry.name: float(part.view(np.int32)[0]) * layout.step(entry) for entry, part in others}
    examples = int(sums.pop(EXAMPLES))
    if examples < 1:
        raise RoundError(f"secure aggregation: the clients' images add up to {examples}: a client sent a wrong number")
    by_name = {entry.name: (part.view(np.int32), layout.step(entry)) for entry, part in tensors}

    def moved(name: str, tensor: Tensor) -> Tensor:
        if name not in by_name:
            return tensor.clone()
        part, step = by_name[name]
        return _moved(tensor, part, step * layout.most_examples / (divisor or examples))

    return Total(origin.map(moved), examples, sums)


def _moved(tensor: Tensor, steps: NDArray[np.int32], scale: float) -> Tensor:
    """The tensor plus so many steps; in float64, a piece at a time."""
    result = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat = tensor.reshape(-1)
    for start in range(0, tensor.numel(), AT_ONCE):
        piece = slice(start, start + AT_ONCE)
        result[piece] = flat[piece].double() + torch.from_numpy(steps[piece] * scale)
    return result.reshape(tensor.shape)
