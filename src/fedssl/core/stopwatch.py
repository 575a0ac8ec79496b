"""Where time goes: seconds by part of the work, for runs that ask for it."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PARTS = {
    "augment": "augmenting views",
    "steps": "forward, backward and optimizer",
    "rule": "update rule and loading weights",
    "state": "client states, checkpoints and records",
    "aggregation": "aggregation",
    "evaluation": "evaluation",
    "idle": "waiting for the server or other clients",
}
UNKNOWN = "other"  # what no part has claimed


class Stopwatch:
    """Adds up the seconds of each part; switched off it measures nothing and waits for no device."""

    def __init__(self, on: bool = False, device: "torch.device | None" = None) -> None:
        self.on, self.device = on, device
        self.seconds: dict[str, float] = {}

    def part(self, name: str) -> AbstractContextManager[None]:
        return self._measured(name) if self.on else nullcontext()

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        self._wait()
        started = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def _wait(self) -> None:
        """A GPU works behind the program's back: what it still has to do belongs to the part that asked for it."""
        if self.device is not None and self.device.type != "cpu":
            import torch

            torch.accelerator.synchronize(self.device)

    def taken(self) -> dict[str, float]:
        """The seconds so far, and back to zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds
