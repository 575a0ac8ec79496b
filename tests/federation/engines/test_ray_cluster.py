"""A Ray cluster of two machines, played by two of Ray's nodes on loopback; one of them is killed in mid-round."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedssl.experiment.progress.views import PlainView
from tests.helpers.faults import everything, experiment
from tests.helpers.ports import free_port

QUICK = {"rounds": 3, "evaluation.every": 0, "data.test_images": 10}
SOON = {"RAY_health_check_period_ms": "1000"}


class Cluster:
    """Started with Ray's own command, as in docs/deployment.md."""

    def __init__(self, folder):
        self.folder, self.address, self.nodes = folder, f"127.0.0.1:{free_port()}", []

    def __enter__(self):
        port = self.address.rpartition(":")[2]
        self.start("--head", "--port", port, "--node-ip-address", "127.0.0.1", "--include-dashboard", "false")
        self.start("--address", self.address, "--node-ip-address", "127.0.0.1")
        return self

    def start(self, *options):
        """Ray gives a node 30 s to start, which a busy machine may not have: it is tried again."""
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus", "1", *options]
        repository = str(Path(__file__).parents[3])
        paths = os.pathsep.join(filter(None, [repository, os.environ.get("PYTHONPATH")]))
        own = SOON | {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        for attempt in range(5):
            path = self.folder / f"ray-{len(self.nodes)}-{attempt}.txt"
            with path.open("wb") as output:
                process = subprocess.Popen(command, env=os.environ | own, stdout=output, stderr=output)
            while process.poll() is None:
                if b"Ray runtime started" in path.read_bytes():
                    self.nodes.append(process)
                    return
                time.sleep(0.1)
        raise AssertionError(path.read_text())

    def kill(self, node):
        """Everything that a machine runs for Ray, at once."""
        processes = [psutil.Process(self.nodes[node].pid)]
        processes += processes[0].children(recursive=True)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.nodes[node].wait()

    def __exit__(self, *details):
        for number in range(len(self.nodes)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.kill(number)


class KillsOnce(PlainView):
    """Kills the second machine when the second round has begun to wait for its clients."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.last = cluster, 0

    def waiting(self, text):
        if self.last == 1 and "train" in text and self.cluster.nodes[1].returncode is None:
            self.cluster.kill(1)

    def round_finished(self, record):
        self.last = record["round"]


@pytest.mark.flower
def test_a_machine_that_is_killed_costs_a_retry_and_no_bit(tmp_path):
    experiment("BYOL + FedEMA", engine="in-process", **QUICK).run(tmp_path / "one")
    with Cluster(tmp_path) as cluster:
        settings = {"engine": "flower", "flower.ray_address": cluster.address}
        experiment("BYOL + FedEMA", **QUICK, **settings).run(tmp_path / "two", KillsOnce(cluster))
        assert cluster.nodes[1].returncode is not None, "it was killed"
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert not (tmp_path / "two/failures.jsonl").exists()


class Actor:
    """An actor of Ray's that lives for so many tasks."""

    def __init__(self, lives):
        self.lives = lives


def pool_of(monkeypatch, room, *lives, pending=0):
    """Actors with so many tasks to live; of those that are made anew the first `pending` never begin."""
    from fedssl.federation.engines.flower import ray_pool

    actors, killed = [Actor(count) for count in lives], []
    new = SimpleNamespace(count=0, killed=killed)

    def get(answer):
        actor, job = answer
        if actor.lives == 0:
            raise ray_pool.RayActorError
        actor.lives -= 1
        if job == ("bad",):
            raise ValueError("the task's own")
        return "cid", job, "context"

    monkeypatch.setattr(ray_pool.ray, "get", get)
    for place in ("flwr.simulation.ray_transport.ray_actor", ray_pool.__name__):
        monkeypatch.setattr(f"{place}.pool_size_from_resources", lambda _: room)
    pool = ray_pool.LivingActors(SimpleNamespace(options=lambda **_: None), {"num_cpus": 1}, {})
    pool.pool, pool.num_actors = list(actors), len(actors)

    def more():
        new.count += 1
        return SimpleNamespace(lives=9, __ray_ready__=SimpleNamespace(remote=lambda: "begun"))

    monkeypatch.setattr(pool, "create_actor_fn", more)
    monkeypatch.setattr(ray_pool.ray, "wait", lambda refs, timeout: (refs, []) if new.count > pending else ([], refs))
    monkeypatch.setattr(ray_pool.ray, "kill", killed.append)
    return pool, new


def run(pool, *job):
    task = pool.submit(lambda actor, *values: (actor, values), job)
    try:
        return pool.fetch_result_and_return_actor_to_pool(task)
    except ValueError:
        pool.add_actor_back_to_pool(task)
        raise


def test_a_dead_actor_gets_no_second_task(monkeypatch):
    pool, new = pool_of(monkeypatch, 2, 9, 0)
    assert [run(pool, number)[0] for number in range(3)] == [(0,), (1,), (2,)]
    assert (pool.num_actors, new.count) == (1, 0)
    with pytest.raises(ValueError, match="own"):
        run(pool, "bad")
    assert len(pool.pool) == 1, "an actor that raised is as good as before"


def test_when_all_have_died_the_room_that_is_left_is_used(monkeypatch):
    pool, new = pool_of(monkeypatch, 2, 0, 0)
    assert run(pool, 1)[0] == (1,)
    assert (pool.num_actors, new.count) == (2, 2)


def test_an_actor_that_never_begins_gets_no_task(monkeypatch):
    """Ray still counts the room of a machine that died a moment ago."""
    pool, new = pool_of(monkeypatch, 1, 0, pending=2)
    assert run(pool, 1)[0] == (1,)
    assert (pool.num_actors, new.count, len(new.killed)) == (1, 3, 2)
