"""Flower's pool of Ray actors without its dead: what a lost machine was doing is done by another one.

Flower puts an actor that died back among the idle ones, where it fails the next task, and the next.
"""

from collections.abc import Callable
from threading import Condition
from typing import Any

import ray
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, pool_size_from_resources
from ray.exceptions import RayActorError

LOOK = 5.0  # seconds between two looks for machines that came


class LivingActors(BasicActorPool):
    """Gives each task to an actor that lives, again if it dies over it; grows when a machine joins the cluster."""

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self._changed = Condition()

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> tuple[Any, ...]:
        """A task that is not begun yet: which actor gets it is for `fetch_result_and_return_actor_to_pool` to say."""
        return actor_fn, job

    def fetch_result_and_return_actor_to_pool(self, future: tuple[Any, ...]) -> tuple[Any, Any]:
        actor_fn, job = future
        while True:
            actor = self._take()
            try:
                _, reply, context = ray.get(actor_fn(actor, *job))
            except RayActorError:
                self._drop()
                continue
            except BaseException:
                self._give_back(actor)
                raise
            self._give_back(actor)
            return reply, context

    def add_actor_back_to_pool(self, future: tuple[Any, ...]) -> None:
        """Flower calls this after an error: the actor is back already, or dead."""

    def _take(self) -> Any:
        with self._changed:
            while not self.pool:
                self._grow()
                if not self.pool:
                    self._changed.wait(LOOK)
            return self.pool.pop()

    def _give_back(self, actor: Any) -> None:
        with self._changed:
            self.pool.append(actor)
            self._changed.notify()

    def _drop(self) -> None:
        with self._changed:
            self.num_actors -= 1
            self._changed.notify()

    def _grow(self) -> None:
        """New actors for what the cluster has room for by now; with none at all, it waits for a machine."""
        try:
            room = pool_size_from_resources(self.client_resources)
        except ValueError:  # what Flower says of a cluster without any
            return
        self.add_actors_to_pool(max(room - self.num_actors, 0))
