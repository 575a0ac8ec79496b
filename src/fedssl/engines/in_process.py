"""Clients one after another in this process."""

from collections.abc import Iterator

from fedssl.federation.client import Client, handle
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import StepWatcher, TrainResult, TrainTask


class InProcessEngine:
    def __init__(self, client: Client, store: ClientStore, watch: StepWatcher | None = None) -> None:
        self.client, self.store, self.watch = client, store, watch

    def run_tasks(self, tasks: list[TrainTask]) -> Iterator[TrainResult]:
        for task in tasks:
            yield handle(self.client, self.store, task, self.watch)
