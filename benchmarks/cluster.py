"""What a round of simulated clients costs beyond training on a Ray cluster: two of Ray's nodes on loopback.

python -m benchmarks.cluster [--clients 5,20,100] [--rounds 4]
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.deployment import fedssl, free_port
from benchmarks.measuring import slope

NODES = 2  # with one core each
IMAGES = 8  # of each client: one batch


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Its address; what was started is ended, by its own id."""
    address, nodes = f"127.0.0.1:{free_port()}", []
    head = ["--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false"]
    try:
        for options in (head, *[["--address", address]] * (NODES - 1)):
            nodes.append(_node(folder / f"ray-{len(nodes)}.txt", options))
        yield address
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


def measure(address: str, folder: Path, clients: int, rounds: int) -> dict[str, Any]:
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
    if fedssl(folder, f"{name}.txt", "run", "smoke", "--engine", "flower", "--out", name, *words).wait():
        raise SystemExit((folder / f"{name}.txt").read_text())
    lines = (folder / name / "rounds.jsonl").read_text().splitlines()
    done = [json.loads(line) for line in lines][2:]
    trained = [sum(client["seconds"] for client in one["clients"]) / min(NODES, clients) for one in done]
    beyond = [one["seconds"] - seconds for one, seconds in zip(done, trained, strict=True)]
    return {
        "clients": clients,
        "seconds a round": round(statistics.median(one["seconds"] for one in done), 2),
        "seconds beyond training": round(statistics.median(beyond), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="5,20,100")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedssl-cluster-"))
    try:
        with cluster(folder) as address:
            measured = []
            for clients in map(int, given.clients.split(",")):
                measured.append(measure(address, folder, clients, given.rounds))
                print(json.dumps(measured[-1]), flush=True)
        costs = [one["seconds beyond training"] for one in measured]
        print(f"exponent {slope([one['clients'] for one in measured], costs):.2f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
