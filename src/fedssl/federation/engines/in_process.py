"""Clients one after another in this process."""

import time
from collections.abc import Iterator

from fedssl.core.progress import Progress, silent
from fedssl.federation.client import Client, attempt
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import Failure, TrainResult, TrainTask


class InProcessEngine:
    workers = 1

    def __init__(
        self, client: Client, store: ClientStore, progress: Progress = silent, time_limit: float | None = None
    ) -> None:
        self.client, self.store, self.progress, self.time_limit = client, store, progress, time_limit
        self.idle_seconds = 0.0

    def run_tasks(self, tasks: list[TrainTask]) -> Iterator[TrainResult | Failure]:
        for task in tasks:
            reply = attempt(self.client, self.store, task, self.progress, self.time_limit)
            delivered = time.perf_counter()
            yield reply  # and the server looks at it
            self.idle_seconds += time.perf_counter() - delivered
