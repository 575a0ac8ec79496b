"""What a server checks of the tensors that clients of a method send beside their weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def tensor_problem(payload: Mapping[str, Tensor], name: str, shape: Sequence[int | None]) -> str:
    """Why a payload is not one float32 tensor of this name and shape (None: any length), in words; "": it is.

    >>> tensor_problem({"projections": torch.ones(3, 7)}, "projections", (None, 8))
    'got projections: torch.float32 of shape (3, 7), expected projections: torch.float32 of shape (…, 8)'
    """
    sent = payload.get(name)
    if sent is not None and len(payload) == 1 and sent.dtype == torch.float32 and fits(sent.shape, shape):
        return ""
    got = ", ".join(f"{key}: {one.dtype} of shape {tuple(one.shape)}" for key, one in sorted(payload.items()))
    lengths = ", ".join("…" if length is None else str(length) for length in shape)
    return f"got {got or 'nothing'}, expected {name}: torch.float32 of shape ({lengths})"


def fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(need in (None, have) for have, need in zip(shape, wanted, strict=True))


def unit_rows_problem(payload: Mapping[str, Tensor], name: str, tolerance: float = 1e-3) -> str:
    """Which row of a matrix has not length 1, NaN included; "": none."""
    wrong = ~((payload[name].norm(dim=1) - 1).abs() <= tolerance)
    return f"{name}: row {int(wrong.nonzero()[0])} is not normalised" if bool(wrong.any()) else ""
