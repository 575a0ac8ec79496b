"""How a run is going right now, in a small file of its folder that `fedssl watch` reads; the run does not depend on it.

The file is replaced at most once a second and never synced: a page wants the newest, and nobody reads it after a crash
of the machine. A disk that refuses costs the page its news and the run nothing.
"""

import contextlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from fedssl.core.errors import safe_text
from fedssl.core.files import UNFINISHED
from fedssl.experiment.progress.views import PassingView, View

LIVE = "live.json"
EVERY = 1.0  # seconds
KEPT = 30  # sentences


class NotedView(PassingView):
    """Passes everything on, and writes down what it means for who is where."""

    def __init__(self, view: View, folder: Path) -> None:
        super().__init__(view)
        self.path, self.written = folder / LIVE, 0.0
        self.said: deque[tuple[float, str]] = deque(maxlen=KEPT)
        self.clients: dict[int, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}

    def __exit__(self, *details: object) -> None:
        if self.facts:
            self._write(ended=True)
        super().__exit__(*details)

    def start(self, title: str, rounds: int, steps: int, done: int) -> None:
        now, process = time.time(), psutil.Process()
        self.facts = {"pid": os.getpid(), "host": socket.gethostname(), "process_began": process.create_time()}
        self.facts |= {"title": title, "rounds": rounds, "done": done, "began_with": done, "steps": steps, "stepped": 0}
        self.facts |= {"began": now, "round_began": now, "doing": ""}
        self._write()
        super().start(title, rounds, steps, done)

    def say(self, text: str) -> None:
        self.said.append((time.time(), text))
        super().say(text)

    def progress(self, text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        if client is None:
            self._note(f"{text}: {done:,} of {total:,}" if total else text)
        else:
            self._set(client, "working" if done != total else "done")
            self.clients[client] |= {"step": done, "steps": total}
            self.facts["stepped"] = self.facts.get("stepped", 0) + 1
            self._note(text)
        super().progress(text, done, total, client, images)

    def waiting(self, text: str) -> None:
        self._note(text)
        super().waiting(text)

    def presence(self, clients: Mapping[int, str]) -> None:
        for client, state in clients.items():
            self._set(client, state)
        super().presence(clients)

    def round_finished(self, record: dict[str, Any]) -> None:
        now = time.time()
        for client in [client for client, one in self.clients.items() if one["state"] != "away"]:
            self._set(client, "here")
        self.facts |= {"done": record["round"], "round_began": now, "doing": ""}
        if record["round"] == 0:
            self.facts["began"] = now  # the first evaluation says nothing about the length of a round
        self._write()
        super().round_finished(record)

    def _set(self, client: int, state: str) -> None:
        if self.clients.get(client, {}).get("state") != state:
            self.clients[client] = {"state": state, "since": time.time()}

    def _note(self, doing: str) -> None:
        if not self.facts:
            return  # the run has no folder yet
        self.facts["doing"] = doing
        if time.time() - self.written > EVERY:
            self._write()

    def _write(self, **more: Any) -> None:
        now, said = time.time(), [(when, safe_text(text)) for when, text in self.said]
        doing = safe_text(self.facts["doing"])
        content = {**self.facts, "doing": doing, "time": now, "clients": self.clients, "said": said, **more}
        unfinished = self.path.with_name(f"{LIVE}.{os.getpid()}{UNFINISHED}")
        with contextlib.suppress(OSError):
            unfinished.write_text(json.dumps(content), encoding="utf-8")
            unfinished.replace(self.path)
        self.written = now
