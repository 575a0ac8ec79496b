"""Targets 9 and 13, and how a round across machines grows with the number of sites.

    python -m benchmarks.sites [--sites 2,5,10,20] [--megabytes 0.14]

Rows 9 and 13 are whole deployments (deployment.py) beside Flower's own quickstart (quickstart.py). For the curve all
sites are threads of one process that send back what they get: what is measured is the server, which they share.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import deployment, quickstart
from benchmarks.cost import Cost
from benchmarks.growth import Curve
from benchmarks.measuring import Row, faster, grows, within

SITES = (2, 5, 10, 20)
FIXED, LARGE, MEMORY = 4.0, 12.0, 2000.0  # seconds, seconds, MB
TINY = ("--network", "convnet", "--width", "8", "--heads", "64")
PAPER = 38_460_000  # parameters that travel
STATE = 240.7  # MB of a client of such a network: online, predictor, target; a site keeps three generations
CLIENTS = 3
ROUNDS = 24  # of sites that do nothing: a round of two takes less time than the clock of a watch can tell


def rows() -> list[Row]:
    """Clock seconds of a round beyond training, three clients: ours over TLS, Flower's quickstart without."""
    tiny, paper = (measured(*size) for size in (TINY, ()))
    theirs = [quickstart.measure(CLIENTS, 3, parameters) for parameters in (PAPER // 1000, PAPER)]
    quick = [one["seconds a round, median of those after the first"] for one in theirs]
    ours = [one["seconds beyond training, median of the others"] for one in (tiny, paper)]
    memory = [one["peak MB of all processes"]["client"] for one in (theirs[1], paper)]
    name, moved = "Flower's quickstart", 2 * CLIENTS * paper["megabytes up, each"]
    (curve,), none = curves(), float("-inf")
    return [
        limited("9 a round across machines, tiny network", name, "s", quick[0], ours[0], FIXED),
        limited("9 a round across machines, 154 MB", name, "s", quick[1], ours[1], LARGE),
        rate("9 weights moved in such a round, 154 MB", name, moved / quick[1], moved / ours[1], moved / LARGE),
        limited("13 peak memory of a site, 154 MB", name, "MB", memory[0], memory[1], MEMORY),
        within("13 disk of a site, 154 MB", "one state", "MB", STATE, paper["MB on disk at the end"]["client"], 3.01),
        grows("time at the server against sites", f"{SITES[0]} … {SITES[-1]}", curve.exponent("seconds"), none, 1.1),
        grows("memory of the server against sites", f"{SITES[0]} … {SITES[-1]}", curve.exponent("megabytes"), none, 1),
    ]


def limited(target: str, against: str, unit: str, baseline: float, ours: float, limit: float) -> Row:
    """A cost beside that of a baseline, with a limit of its own."""
    row = within(target, against, unit, baseline, ours, limit / baseline)
    return replace(row, needed=f"≤ {limit:,.0f} {unit}")


def rate(target: str, against: str, baseline: float, ours: float, at_least: float) -> Row:
    """Megabytes a second, of which more is better."""
    row = faster(target, against, "MB/s", 1 / baseline, 1 / ours, at_least / baseline)
    return replace(row, baseline=baseline, ours=ours, needed=f"≥ {at_least:.0f} MB/s")


def curves() -> list[Curve]:
    counted = growth()
    costs = [Cost(one["CPU seconds at the server"], one["peak MB of the server"]) for one in counted.values()]
    return [Curve("sites", "sites that only echo", list(counted), costs)]


HOPS = (
    "clients",
    "megabytes up, each",
    "aggregation seconds",
    "CPU seconds of a round",
    "CPU seconds of a round, by step",
)


def hops() -> dict[str, Any]:
    """Where the CPU seconds of a round of 154 MB go. Counting costs some itself: the rows come from other rounds."""
    counted = measured("--hops")
    return {name: counted[name] for name in HOPS}


def measured(*size: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="fedssl-sites-"))
    try:
        return deployment.measure(deployment.options(["--rounds", "4", *size]), folder)
    finally:
        shutil.rmtree(folder)


@cache
def growth(sites: tuple[int, ...] = SITES, heads: int = 64) -> dict[int, dict[str, Any]]:
    return {count: _served(count, heads) for count in sites}


def _served(count: int, heads: int) -> dict[str, Any]:
    """A server and `count` sites that do nothing."""
    folder = Path(tempfile.mkdtemp(prefix="fedssl-sites-"))
    port, watch = deployment.free_port(), deployment.Watch(folder / "run/rounds.jsonl")
    names = [f"site-{number}" for number in range(count)]
    words = ["--insecure", "--network", "convnet", "--width", "8", "--heads", str(heads), "--rounds", str(ROUNDS)]
    given = deployment.options(words)
    sites = [sys.executable, "-m", "benchmarks.sites", "--serve", f"127.0.0.1:{port}", "--sites", str(count)]
    try:
        with deployment.started_server(folder, names, ["--insecure"], port, given) as server:
            others = subprocess.Popen(sites, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            watch.follow({"server": [server.pid], "sites": [others.pid]})
            code = server.wait()
            watch.stop()
            others.kill()
            others.wait()
        if code:
            raise SystemExit((folder / "server.txt").read_text())
        rounds = deployment.rounds_of(folder)
        cpu = watch.cpu_per_round()
        return {
            "seconds": [round(one["seconds"], 2) for one in rounds],
            "megabytes up, each": rounds[-1]["clients"][0]["bytes_up"] / 1e6,
            "CPU seconds at the server": round(sum(cpu[kind] for kind in cpu if kind.startswith("server")), 2),
            "CPU seconds of all sites": round(sum(cpu[kind] for kind in cpu if kind.startswith("sites")), 2),
            "peak MB of the server": round(watch.trees["server"] / 1e6),
        }
    finally:
        shutil.rmtree(folder)


def serve(address: str, count: int) -> None:
    """Sites as threads, which answer with the weights that they got."""
    from fedssl.deployment import APP, fingerprint_of
    from fedssl.deployment.site_folder import Start
    from fedssl.deployment.supernode import Node, connection
    from fedssl.federation.engines.flower.api import ClientApp, Message
    from fedssl.federation.engines.flower.messages import pack_reply, record, unpack_task
    from fedssl.federation.messages import TrainResult

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:  # noqa: ARG001
        task = unpack_task(message).task
        numbers = {"loss": 1.0, "images": 8, "seconds": 0.001}
        result = TrainResult(task.client_id, task.round_number, task.global_weights, num_examples=8, scalars=numbers)
        return Message(pack_reply(result), reply_to=message)

    @app.query()
    def query(message: Message, context: Any) -> Message:
        return Message(record({"name": str(context.node_config["name"])}), reply_to=message)

    accepted = fingerprint_of(APP)

    def one(name: str) -> None:
        start = Start(address, "", "", {"name": name})
        with connection(start) as connected:
            Node(connected, start.node, app, accepted).serve()

    threads = [threading.Thread(target=one, args=(f"site-{number}",)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:  # once this one has ended, no other may start threads to fetch objects with
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default=",".join(map(str, SITES)))
    parser.add_argument("--heads", type=int, default=64, help="width of the heads: how much is sent")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, int(given.sites))
        return
    for count, cost in growth(tuple(int(word) for word in given.sites.split(",")), given.heads).items():
        print(count, json.dumps(cost), flush=True)


if __name__ == "__main__":
    main()
