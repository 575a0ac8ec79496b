"""Progress of anything that takes time: one call with what is done, how much of it, and how much there is."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, text: str, done: int, total: int | None) -> None:
        """`done` bytes or images of `total` (None: not known) of what `text` says."""


def silent(text: str, done: int, total: int | None) -> None:
    """Progress that nobody watches."""
