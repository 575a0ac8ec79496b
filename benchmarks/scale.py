"""How long a round takes with 10 to 100,000 clients behind one server: a simulation from measured throughput.

Down: all clients fetch the global weights at once and share the server's link. Each trains for a time of its own. Up:
who is done sends, and shares the link with those who send at that moment; the server averages one after another.

    python -m benchmarks.scale [--throughput MB/s] [--plot FILE]
    make results    # docs/scale.md and its picture, for the server that results/bench.json measured
"""

import argparse
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

MODEL = 154e6  # bytes of the paper's encoder and predictor in fp32


@dataclass(frozen=True)
class Server:
    """One server; the defaults are near what was measured."""

    throughput: float = 97e6  # bytes a second that pass through the SuperLink, both ways together
    averaging: float = 0.05  # seconds an upload of 154 MB, read from disk and added
    fixed: float = 0.4  # seconds per round, however small the model

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """As `make bench` measured it, with three sites on loopback."""
        ours = {row["target"]: row["ours"] for row in record["rows"]}
        hops = record["hops"]
        return cls(
            1e6 * ours["9 weights moved in such a round, 154 MB"],
            hops["aggregation seconds"] / hops["clients"],
            ours["9 a round across machines, tiny network"],
        )


@dataclass(frozen=True)
class Clients:
    """A site: its link, and how long it trains (log-normal: some are slow)."""

    link: float = 12.5e6  # bytes a second: 100 Mbit/s
    train_median: float = 120.0
    train_sigma: float = 0.5

    def training_times(self, count: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).lognormal(math.log(self.train_median), self.train_sigma, count)


@dataclass(frozen=True)
class Way:
    """How a federation of K clients works: how many a round asks, and in how many bytes."""

    name: str
    sampled: Callable[[int], int]
    size: float = MODEL
    two_level: bool = False


WAYS = (
    Way("all clients, fp32", lambda clients: clients),
    Way("all clients, bf16", lambda clients: clients, MODEL / 2),
    Way("all clients, int8", lambda clients: clients, MODEL / 4),
    Way("100 a round, fp32", lambda clients: min(clients, 100)),
    Way("100 a round, int8", lambda clients: min(clients, 100), MODEL / 4),
    Way("all clients, int8, two levels", lambda clients: clients, MODEL / 4, two_level=True),
)


def round_seconds(sampled: int, size: float, server: Server, clients: Clients, seed: int = 0) -> float:
    """From the first byte down to the last upload averaged."""
    down = max(sampled * size / server.throughput, size / clients.link)
    ready = np.sort(down + clients.training_times(sampled, seed))
    arrived = shared_link(ready.tolist(), size, server.throughput, clients.link)
    averaging, done = server.averaging * size / MODEL, 0.0
    for at in arrived:
        done = max(done, at) + averaging
    return server.fixed + done


def shared_link(starts: Sequence[float], size: float, capacity: float, each: float) -> list[float]:
    """When transfers of one size end that start at these times and share a link evenly, none faster than `each`.

    All have the same size, so they end in the order in which they started: one pass, whatever their number. `served` is
    what any transfer that is under way would have got since the beginning of time.
    """
    ends: list[float] = []
    active: deque[float] = deque()  # the value of `served` at which each of them ends
    now = served = 0.0
    waiting = deque(starts)
    while waiting or active:
        rate = min(each, capacity / len(active)) if active else 0.0
        ends_at = now + (active[0] - served) / rate if active else math.inf
        if waiting and waiting[0] <= ends_at:
            served += rate * (waiting[0] - now)
            now = waiting.popleft()
            active.append(served + size)
        else:
            served, now = active.popleft(), ends_at
            ends.append(now)
    return ends


def seconds_of(way: Way, clients: int, server: Server, sites: Clients, seed: int = 0) -> float:
    sampled = way.sampled(clients)
    if not way.two_level:
        return round_seconds(sampled, way.size, server, sites, seed)
    regions = max(round(math.sqrt(sampled)), 1)
    below = round_seconds(-(-sampled // regions), way.size, server, sites, seed)
    # A region has its average when its clients have theirs; its own link is as good as the server's.
    at_once = replace(sites, train_median=1e-9, link=server.throughput)
    return below + round_seconds(regions, way.size, server, at_once, seed)


def most_clients(way: Way, server: Server, sites: Clients, limit: float) -> int:
    """The largest number of clients with which a round stays within `limit` seconds (up to a million)."""

    def fits(clients: int) -> bool:
        moved = 0 if way.two_level else 2 * way.sampled(clients) * way.size  # down and up, through one server
        return moved <= limit * server.throughput and seconds_of(way, clients, server, sites) <= limit

    low, high = 1, 1_000_000
    if fits(high):
        return high
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def plot(path: Path, server: Server, sites: Clients) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fedssl"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    counts = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]
    for way in WAYS:
        minutes = [seconds_of(way, count, server, sites) / 60 for count in counts]
        axes.loglog(counts, minutes, marker="o", markersize=3, label=way.name)
    axes.axhline(sites.train_median / 60, color="grey", linestyle=":", label="training alone (median client)")
    axes.set_xlabel("clients")
    axes.set_ylabel("minutes per round")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--throughput", type=float, default=Server.throughput / 1e6, help="of the server, MB/s")
    parser.add_argument("--averaging", type=float, default=Server.averaging, help="seconds an upload")
    parser.add_argument("--fixed", type=float, default=Server.fixed, help="seconds per round")
    parser.add_argument("--link", type=float, default=Clients.link / 1e6, help="of a client, MB/s")
    parser.add_argument("--train", type=float, default=Clients.train_median, help="median seconds of training")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    server = Server(options.throughput * 1e6, options.averaging, options.fixed)
    sites = Clients(options.link * 1e6, options.train)
    print(table((10, 100, 1_000, 10_000, 100_000), server, sites), end="")
    if options.plot:
        plot(options.plot, server, sites)


def table(counts: Sequence[int], server: Server, sites: Clients) -> str:
    head = ["clients", *(f"{count:,}" for count in counts), "most within an hour"]
    lines = [head, ["---"] * len(head)]
    for way in WAYS:
        most = most_clients(way, server, sites, 3600.0)
        words = [_words(seconds_of(way, count, server, sites)) for count in counts]
        lines.append([way.name, *words, "any" if most >= 1_000_000 else f"{most:,}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _words(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


if __name__ == "__main__":
    main()
