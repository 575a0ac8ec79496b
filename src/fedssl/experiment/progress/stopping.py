"""Ctrl-C, SIGTERM and SIGHUP as a request: the batch in hand is finished, then the run stops and keeps what it has."""

import contextlib
import os
import signal
import stat
from types import FrameType
from typing import Any, Self

from fedssl.experiment.progress.views import PassingView, View

HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows knows no such signal


def stop_signals() -> list[int]:
    """Those that ask to stop; what nohup has ignored stays ignored."""
    hang_up = [HANG_UP] if HANG_UP and signal.getsignal(HANG_UP) != signal.SIG_IGN else []
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


def forget_terminal(number: int) -> None:
    """After a hang-up it is gone, and every line written to it would be an error."""
    if number != HANG_UP:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with contextlib.suppress(OSError):  # closed long ago
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(null, stream)


class StopRequest:
    """Holds back so many signals, of which `check` tells at a safe point; one more stops at once."""

    def __init__(self, held_back: float = 1) -> None:
        self.signal: int | None = None  # the first
        self._left = held_back
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._received) for number in stop_signals()}
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        forget_terminal(number)
        self.signal = self.signal or number
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or signal.SIGINT)


class StoppableView(PassingView):
    """A view that passes everything on, and between two batches or rounds looks whether somebody wants to stop."""

    def __init__(self, view: View, request: StopRequest) -> None:
        super().__init__(view)
        self.request = request

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        super().progress(text, done, total, client, images)
        self.request.check()

    def waiting(self, text: str) -> None:
        super().waiting(text)
        self.request.check()

    def advance(self, by: float = 1, text: str = "") -> None:
        super().advance(by, text)
        self.request.check()

    def round_finished(self, record: dict[str, Any]) -> None:
        super().round_finished(record)
        self.request.check()
