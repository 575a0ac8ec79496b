"""Named weight sets: the average, the interpolation and the divergence that the paper's formulas are made of."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor, nn

Norm = Literal["l2", "mean-conv", "mean-matrix"]
CHUNK = 1 << 18  # elements of a tensor that a divergence looks at together


@dataclass(frozen=True)
class Weights:
    """A module's tensors by name, in sorted order; parameters apart from buffers: a divergence is over parameters."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Sums must not depend on the order in which a file or a message returned its keys.
        object.__setattr__(self, "parameters", dict(sorted(self.parameters.items())))
        object.__setattr__(self, "buffers", dict(sorted(self.buffers.items())))

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """A copy of a module's weights on the CPU; the module may be trained further."""
        buffers = dict(module.named_buffers())
        return cls(
            {name: _detached_copy(tensor) for name, tensor in module.named_parameters()},
            {name: _detached_copy(buffers[name]) for name in module.state_dict() if name in buffers},
        )

    @torch.no_grad()
    def load_into(self, module: nn.Module) -> None:
        """Copies the values into a module of the same names; never makes the module share our memory."""
        module.load_state_dict(self.tensors(), strict=True)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors under the names of the module's state dict."""
        return {**self.parameters, **self.buffers}

    def copy(self) -> Self:
        return self.map(lambda _, tensor: tensor.clone())

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        return type(self)(
            {name: change(name, tensor) for name, tensor in self.parameters.items()},
            {name: change(name, tensor) for name, tensor in self.buffers.items()},
        )

    def without(self, names: frozenset[str]) -> Self:
        return type(self)(
            {name: tensor for name, tensor in self.parameters.items() if name not in names},
            {name: tensor for name, tensor in self.buffers.items() if name not in names},
        )

    def overlaid(self, top: "Weights") -> Self:
        """Our tensors, replaced by those of `top` where it has them."""
        return type(self)({**self.parameters, **top.parameters}, {**self.buffers, **top.buffers})

    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def digest(self) -> str:
        """SHA-256 over the sorted names and the bits of every tensor."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.tensors().items()):
            sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            whole = tensor.detach().cpu().contiguous()
            # as_strided: a tensor of one element may have any stride, which the view as bytes would refuse.
            sha.update(whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy().data)
        return sha.hexdigest()


def _detached_copy(tensor: Tensor) -> Tensor:
    # Plain row-major memory whatever the module uses (channels_last): files and digests depend on values only.
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


class Average:
    """sum_k (n_k / n) W_k, one W_k at a time, so that the server never holds all of them."""

    def __init__(self, total: float) -> None:
        self.total = total
        self._sum = Weights()
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, share: float, weights: Weights) -> None:
        part = share / self.total
        if not self._dtypes:
            self._dtypes = {name: tensor.dtype for name, tensor in weights.tensors().items()}
            self._sum = weights.map(
                lambda _, tensor: (tensor if tensor.is_floating_point() else tensor.double()) * part
            )
            return
        tensors = weights.tensors()
        for name, sum_ in self._sum.tensors().items():
            sum_.add_(tensors[name], alpha=part)

    def weights(self) -> Weights:
        """The average; integer buffers (BatchNorm's counter) are rounded back to integers."""
        return self._sum.map(lambda name, sum_: in_dtype(sum_, self._dtypes[name]))


def in_dtype(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A computed value in the type it came from, rounded to the nearest integer where that is a whole number."""
    return exact.to(dtype) if dtype.is_floating_point else exact.round().to(dtype)


def interpolate(local: Weights, global_: Weights, mu: float) -> Weights:
    """mu · local + (1 − mu) · global_; exactly a copy of `global_` at mu = 0 and of `local` at mu = 1."""
    ours = local.tensors()

    def mix(name: str, theirs: Tensor) -> Tensor:
        if theirs.is_floating_point():
            return torch.lerp(theirs, ours[name], mu)
        return torch.lerp(theirs.double(), ours[name].double(), mu).round().to(theirs.dtype)

    return global_.map(mix)


def divergence(a: Weights, b: Weights, norm: Norm) -> float:
    """How far two encoders are apart, over parameters only.

    l2: one norm over all parameters (the paper's formula). mean-conv: the mean, over the convolution weights named
    conv* (shortcuts excluded), of each layer's l2 norm (the authors' code; FedU's threshold 0.4 is on this scale).
    mean-matrix: the same mean over all weights of linear layers and convolutions, for networks without conv*.
    """
    if norm != "l2":
        names = conv_names(a) if norm == "mean-conv" else matrix_names(a)
        return math.fsum(math.sqrt(_squared_distance(a, b, name)) for name in names) / len(names)
    return math.sqrt(math.fsum(_squared_distance(a, b, name) for name in a.parameters))


def conv_names(weights: Weights) -> list[str]:
    """The parameters that the authors' divergence looks at: 4-D weights of modules called conv*."""

    def is_conv(name: str) -> bool:
        module, _, leaf = name.rpartition(".")
        return leaf == "weight" and module.rpartition(".")[2].startswith("conv")

    return [name for name, tensor in weights.parameters.items() if tensor.ndim == 4 and is_conv(name)]


def matrix_names(weights: Weights) -> list[str]:
    """The weights of linear layers and convolutions: every parameter called weight with at least two dimensions."""
    return [
        name for name, tensor in weights.parameters.items() if tensor.ndim > 1 and name.rpartition(".")[2] == "weight"
    ]


def _squared_distance(a: Weights, b: Weights, name: str) -> float:
    # By chunks that stay in the cache: the float64 copy of a whole model would be four passes over memory.
    pairs = zip(*(torch.split(weights.parameters[name].reshape(-1), CHUNK) for weights in (a, b)), strict=True)
    return math.fsum(float((ours - theirs).double().square_().sum()) for ours, theirs in pairs)


def non_finite(weights: Weights) -> Iterator[str]:
    """The names of tensors that hold NaN or Inf."""
    for name, tensor in weights.tensors().items():
        # A finite sum has finite terms, and summing makes no copy; only a sum that overflowed needs the second look.
        if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
            continue
        if not bool(torch.isfinite(tensor).all()):
            yield name
