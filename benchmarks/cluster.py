"""What a round of simulated clients costs beyond training on a Ray cluster: two of Ray's nodes on loopback.

    python -m benchmarks.cluster [--clients 5,20,100] [--rounds 4]

By the clock, of the least disturbed round: what costs is waiting for Ray. Training counts as if it were spread evenly
over the nodes.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cost import Cost
from benchmarks.deployment import Watch, fedssl, free_port
from benchmarks.growth import Curve
from benchmarks.measuring import Row, grows

NODES = 2  # with one core each
IMAGES = 8  # of each client: one batch
CLIENTS = (5, 20, 100)


def rows() -> list[Row]:
    exponent = curves()[0].exponent("seconds")
    against = f"Ray cluster, {CLIENTS[0]} … {CLIENTS[-1]}"
    return [grows("time beyond training against simulated clients", against, exponent, float("-inf"), 1.1)]


def curves() -> list[Curve]:
    counted = growth()
    costs = [Cost(one["seconds beyond training"], one["peak MB of the nodes"]) for one in counted.values()]
    return [Curve("cluster", "simulated clients on two nodes of Ray", list(counted), costs)]


@cache
def growth(clients: tuple[int, ...] = CLIENTS, rounds: int = 4) -> dict[int, dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="fedssl-cluster-"))
    try:
        with cluster(folder) as (address, nodes):
            return {count: measure(address, nodes, folder, count, rounds) for count in clients}
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[psutil.Popen]]]:
    """Its address and nodes; what was started is ended, by its own id."""
    address, nodes = f"127.0.0.1:{free_port()}", []
    head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false"]
    try:
        for options in (head, *[["--address", address]] * (NODES - 1)):
            nodes.append(_node(folder / f"ray-{len(nodes)}.txt", options))
        yield address, nodes
    finally:
        for node in nodes:
            for process in [node, *node.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _node(output: Path, options: list[str]) -> psutil.Popen:
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus", "1", *options]
    own = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    for _ in range(5):  # Ray gives a node 30 s to start, which a busy machine may not have
        with output.open("wb") as file:
            node = psutil.Popen([*command, "--node-ip-address", "127.0.0.1"], env=own, stdout=file, stderr=file)
        while node.poll() is None:
            if b"Ray runtime started" in output.read_bytes():
                return node
            time.sleep(0.1)
    raise SystemExit(output.read_text())


def measure(address: str, nodes: list[psutil.Popen], folder: Path, clients: int, rounds: int) -> dict[str, Any]:
    """Of rounds after the first, in which Ray starts its actors."""
    settings = {
        "data.train_images": IMAGES * clients,
        "data.test_images": 10,
        "partition.name": "iid",
        "partition.num_clients": clients,
        "local_training.batch_size": IMAGES,
        "evaluation.every": 0,
        "evaluation.k": 2,
        "rounds": rounds,
        "threads": 1,
        "flower.ray_address": address,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    name = f"run-{clients}"
    watch = Watch(folder / name / "rounds.jsonl")
    watch.follow({f"node {number}": [node.pid] for number, node in enumerate(nodes)})
    code = fedssl(folder, f"{name}.txt", "run", "smoke", "--engine", "flower", "--out", name, *words).wait()
    watch.stop()
    if code:
        raise SystemExit((folder / f"{name}.txt").read_text())
    lines = (folder / name / "rounds.jsonl").read_text().splitlines()
    done = [json.loads(line) for line in lines][2:]
    trained = [sum(client["seconds"] for client in one["clients"]) / min(NODES, clients) for one in done]
    beyond = [one["seconds"] - seconds for one, seconds in zip(done, trained, strict=True)]
    return {
        "clients": clients,
        "seconds a round": round(min(one["seconds"] for one in done), 2),
        "seconds beyond training": round(min(beyond), 3),
        "peak MB of the nodes": round(sum(watch.trees.values()) / 1e6),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    for cost in growth(tuple(int(word) for word in given.clients.split(",")), given.rounds).values():
        print(json.dumps(cost))


if __name__ == "__main__":
    main()
