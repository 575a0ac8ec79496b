"""Optimizers of torch without its compiler, whose import takes longer than a short run trains."""

from inspect import unwrap
from typing import TypeVar

import torch
from torch.optim import Optimizer

Kind = TypeVar("Kind", bound=Optimizer)


def eager(kind: type[Kind]) -> type[Kind]:
    """The same optimizer, bit by bit, as functions that no graph is broken before and after.

    torch's own import `torch._dynamo` at their first call, used or not.

    >>> eager(torch.optim.SGD)([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    """
    plain = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(unwrap(kind.step))})
