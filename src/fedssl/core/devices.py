"""Where tensors live: the device that a setting names, or the best there is."""

import torch

from fedssl.core.errors import FedsslError, first_line


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FedsslError(f"device: {name!r} cannot be used here: {first_line(error)}") from None
    return device
