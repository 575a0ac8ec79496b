"""What a round costs beyond training when clients are at their own sites: seconds, memory and disk.

A server and clients as processes on loopback, as in docs/deployment.md; training is a single small batch.

python -m benchmarks.deployment [--clients 3] [--rounds 4] [--network resnet18] [--heads 4096]
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

IMAGES = 8  # of each client: one batch


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Of the command line, or of `words`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4096, help="hidden width; they end in half of it")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--hops", action="store_true", help="also the CPU seconds of each step (costs some itself)")
    return parser.parse_args(words)


def main() -> None:
    given = options()
    folder = Path(tempfile.mkdtemp(prefix="fedssl-deployment-"))
    try:
        print(json.dumps(measure(given, folder), indent=1))
    finally:
        if not given.keep:
            shutil.rmtree(folder)


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    names = [f"site-{number}" for number in range(given.clients)]
    security = ["--insecure"] if given.insecure else make_keys(folder, names)
    port, watch = free_port(), Watch(folder / "run/rounds.jsonl", folder / "hops" if given.hops else None)
    counting = counting_hops(folder / "hops") if given.hops else {}
    with mock.patch.dict(os.environ, counting), started(folder, names, security, port, given) as (server, clients):
        watch.follow({"server": [server.pid], "client": [one.pid for one in clients]})
        code = server.wait()
        watch.stop()
    if code:
        raise SystemExit((folder / "server.txt").read_text())
    return result(folder, given, watch)


def counting_hops(folder: Path) -> dict[str, str]:
    """The environment in which every program counts its steps (hops/sitecustomize.py), into this folder."""
    folder.mkdir()
    paths = str(Path(__file__).parent / "hops"), os.environ.get("PYTHONPATH")
    return {"FEDSSL_HOPS": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def result(folder: Path, given: argparse.Namespace, watch: "Watch") -> dict[str, Any]:
    rounds = rounds_of(folder)
    beyond = [one["seconds"] - max(client["seconds"] for client in one["clients"]) for one in rounds]
    disk = {name: size_of(folder / place) for name, place in {"server": "run", "client": "state-site-0"}.items()}
    return {
        "network": f"{given.network}, width {given.width}",
        "clients": given.clients,
        "tls": not given.insecure,
        "megabytes up, each": rounds[-1]["clients"][0]["bytes_up"] / 1e6,
        "seconds beyond training, first round": beyond[0],
        "seconds beyond training, median of the others": statistics.median(beyond[1:]),
        "seconds beyond training, all": beyond,
        "aggregation seconds": statistics.median(one["aggregation_seconds"] for one in rounds),
        "CPU seconds of a round": watch.cpu_per_round(),
        "CPU seconds of a round, all": round(sum(watch.cpu_per_round().values()), 1),
        "CPU seconds of a round, by step": watch.hops_per_round(),
        "peak MB of all processes": {name: round(peak / 1e6) for name, peak in watch.trees.items()},
        "peak MB, by process": watch.at_peak,
        "peak MB of the largest process": {name: round(peak / 1e6) for name, peak in watch.largest.items()},
        "MB on disk at the end": {name: round(size / 1e6) for name, size in disk.items()},
        "load when it ended": os.getloadavg()[0],
    }


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """Without the zeroth, in which nobody trains."""
    return [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text().splitlines()][1:]


@contextmanager
def started(
    folder: Path, names: list[str], security: list[str], port: int, given: argparse.Namespace
) -> Iterator[tuple["subprocess.Popen[bytes]", list["subprocess.Popen[bytes]"]]]:
    """A server and its clients."""
    keys = security or ["--ca", "certificates/ca.pem"]
    with started_server(folder, names, security, port, given) as server:
        place = ["--server", f"127.0.0.1:{port}"]
        own = [["--name", name, "--state", f"state-{name}"] for name in names]
        clients = [fedssl(folder, f"{words[1]}.txt", "client", *words, *place, *keys) for words in own]
        try:
            yield server, clients
        finally:
            end(*clients)


def end(*processes: "subprocess.Popen[bytes]") -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


@contextmanager
def started_server(
    folder: Path, names: list[str], security: list[str], port: int, given: argparse.Namespace
) -> Iterator["subprocess.Popen[bytes]"]:
    settings = {
        "data.train_images": IMAGES * len(names),
        "data.test_images": 10,
        "data.image_size": 32,
        "partition.name": "iid",
        "partition.num_clients": len(names),
        "network.name": given.network,
        "network.width": given.width,
        "network.head_hidden": given.heads,
        "network.head_out": given.heads // 2,
        "local_training.batch_size": IMAGES,
        "evaluation.every": 0,
        "evaluation.k": 2,
        "rounds": given.rounds,
        "threads": 1,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    server = [
        "server",
        "smoke",
        "--clients",
        ",".join(names),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--out",
        "run",
    ]
    process = fedssl(folder, "server.txt", *server, *words, *security)
    try:
        yield process
    finally:
        end(process)


def fedssl(folder: Path, output: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / output).open("wb") as file:
        command = [sys.executable, "-m", "fedssl", *arguments]
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def make_keys(folder: Path, names: list[str]) -> list[str]:
    for arguments in (["make", "--host", "127.0.0.1"], *(["node", name] for name in names)):
        if fedssl(folder, "keys.txt", "certificates", *arguments).wait():
            raise SystemExit((folder / "keys.txt").read_text())
    return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Watch:
    """Memory (resident) and CPU seconds of process trees, looked at every half second; CPU at the end of each round."""

    def __init__(self, rounds: Path, hops: Path | None = None) -> None:
        self.rounds, self.hops = rounds, hops
        self.trees: dict[str, int] = defaultdict(int)
        self.largest: dict[str, int] = defaultdict(int)
        self.at_peak: dict[str, dict[str, int]] = {}  # what the processes of a tree held then
        self.marks: dict[int, dict[str, float]] = {}  # CPU seconds so far, by the number of rounds that are done
        self._cpu: dict[int, tuple[str, float]] = {}
        self._steps: dict[int, dict[tuple[str, str], float]] = {}  # of hops/sitecustomize.py, at the same marks
        self._stop = threading.Event()

    def follow(self, roots: dict[str, list[int]]) -> None:
        self.thread = threading.Thread(target=self._watch, args=(roots,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self._stop.set()
        self.thread.join()

    def cpu_per_round(self) -> dict[str, float]:
        """CPU seconds of each kind of process in a round, the mean of those after the first."""
        first, last = min(self.marks), max(self.marks)
        kinds = sorted(self.marks[last])
        spent = {kind: self.marks[last][kind] - self.marks[first].get(kind, 0.0) for kind in kinds}
        return {kind: round(seconds / (last - first), 2) for kind, seconds in spent.items()}

    def hops_per_round(self) -> dict[str, float]:
        """CPU seconds of each step, by process, those of 0.05 s and more; empty if nobody counted."""
        if not self._steps:
            return {}
        first, last = min(self._steps), max(self._steps)
        spent = {step: now - self._steps[first].get(step, 0.0) for step, now in self._steps[last].items()}
        means = {": ".join(step): round(seconds / (last - first), 2) for step, seconds in spent.items()}
        return {step: seconds for step, seconds in sorted(means.items()) if seconds >= 0.05}

    def _counted(self) -> dict[tuple[str, str], float]:
        steps: dict[tuple[str, str], float] = defaultdict(float)
        for path in self.hops.glob("*.json") if self.hops else ():
            for step, seconds in json.loads(path.read_text()).items():
                steps[self._cpu.get(int(path.stem), ("", 0.0))[0], step] += seconds
        return dict(steps)

    def _watch(self, roots: dict[str, list[int]]) -> None:
        while not self._stop.wait(0.5):
            self._look(roots)

    def _look(self, roots: dict[str, list[int]]) -> None:
        done = len(self.rounds.read_text().splitlines()) - 1 if self.rounds.exists() else 0
        processes = {one.pid: one.info for one in psutil.process_iter(["ppid", "memory_info", "cpu_times", "cmdline"])}
        parents = {pid: info["ppid"] for pid, info in processes.items()}
        for name, pids in roots.items():
            tree = {pid: info for pid, info in processes.items() if set(pids) & set(ancestors(pid, parents))}
            for pid, info in tree.items():
                kind = (
                    f"{name}: {kind_of(info['cmdline'] or [])}" if info["cmdline"] else self._cpu.get(pid, ("", 0))[0]
                )
                self._cpu[pid] = kind, info["cpu_times"].user + info["cpu_times"].system
            own = {pid: info for pid, info in tree.items() if pids[0] in ancestors(pid, parents)}  # the first one's
            self._note_memory(name, {pid: info["memory_info"].rss for pid, info in own.items()})
        if done > 0 and done not in self.marks:
            totals: dict[str, float] = defaultdict(float)
            for kind, seconds in self._cpu.values():
                totals[kind] += seconds
            self.marks[done] = dict(totals)
            if self.hops:
                self._steps[done] = self._counted()

    def _note_memory(self, name: str, sizes: dict[int, int]) -> None:
        self.largest[name] = max(self.largest[name], *sizes.values(), 0)
        if sum(sizes.values()) > self.trees[name]:
            self.trees[name] = sum(sizes.values())
            self.at_peak[name] = {self._cpu[pid][0]: round(size / 1e6) for pid, size in sizes.items()}


KINDS = ("superlink", "supernode", "superexec", "flwr-serverapp", "flwr-clientapp")


def kind_of(command: list[str]) -> str:
    return next((kind for kind in KINDS if any(kind in word for word in command[:3])), "supervisor")


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    line = [pid]
    while (parent := parents.get(line[-1], 0)) > 1:
        line.append(parent)
    return line


if __name__ == "__main__":
    started_at = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started_at:.0f} s in all")
