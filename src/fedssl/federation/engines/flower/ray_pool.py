"""Flower's pool of Ray actors without its dead: what a lost machine was doing is done by another one.

Flower puts an actor that died back among the idle ones, where it fails the next task, and the next.
"""

import time
from collections.abc import Callable
from threading import Condition
from typing import Any

import ray
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, pool_size_from_resources
from ray.exceptions import RayActorError

LOOK = 5.0  # seconds between two looks for machines that came
BEGIN = 60.0  # seconds for an actor to begin, where there is room for it


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
        while True:
            with self._changed:
                if not self.pool:
                    self._changed.wait(LOOK if self.num_actors else 0)
                if self.pool:
                    return self.pool.pop()
            self._grow()

    def _give_back(self, actor: Any) -> None:
        with self._changed:
            self.pool.append(actor)
            self._changed.notify()

    def _drop(self) -> None:
        with self._changed:
            self.num_actors -= 1
            self._changed.notify()

    def _grow(self) -> None:
        """New actors for what the cluster has room for by now; with none at all, it waits for a machine.

        An actor counts once it has begun: Ray still counts the room of a machine that died a moment ago, and an actor
        for which there is none waits for ever.
        """
        try:
            room = pool_size_from_resources(self.client_resources)
        except ValueError:  # what Flower says of a cluster without any
            room = 0
        with self._changed:
            missing = max(room - self.num_actors, 0)
            self.num_actors += missing  # before they are there: other threads look, too
        make: Any = self.create_actor_fn
        for actor in [make() for _ in range(missing)]:
            begun, _ = ray.wait([actor.__ray_ready__.remote()], timeout=BEGIN)
            if begun:
                self._give_back(actor)
            else:
                ray.kill(actor)
                self._drop()
        if not room:
            time.sleep(LOOK)
