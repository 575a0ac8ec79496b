"""Seconds and memory of every aggregator for the paper's ResNet-18 with its heads, uploads mapped from files.

    python -m benchmarks.aggregation [--clients 5 20] [--repeats 3] [--threads 1]

Memory is what the process needs beyond the start (Linux: RssAnon, sampled); mapped files are not in it. The median of
the repeats counts.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_aggregation.base import Aggregator
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import Encoder, HeadSizes, mlp

HEADS = HeadSizes(hidden=4096, out=2048)


class Upload:
    """A result whose weights are mapped from a file each time they are asked for."""

    def __init__(self, client_id: int, folder: Path, start: GlobalWeights) -> None:
        self.client_id, self.num_examples, self.parts = client_id, 10, []
        for name, part in (("encoder", start.encoder), ("predictor", start.predictor)):
            path = folder / f"{client_id}-{name}.safetensors"
            save_file(part.map(lambda _, t: t + 0.01 * torch.randn(t.shape) if t.ndim else t).tensors(), path)
            self.parts.append((path, part))

    @property
    def weights(self) -> GlobalWeights:
        return GlobalWeights(*(self._read(path, part) for path, part in self.parts))

    def _read(self, path: Path, part: Weights) -> Weights:
        tensors = load_file(path)
        return Weights({n: tensors[n] for n in part.parameters}, {n: tensors[n] for n in part.buffers})


def anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def measure(aggregate: Aggregator, uploads: list[Upload], start: GlobalWeights) -> tuple[float, float]:
    before, peak, done = anonymous_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    aggregate(uploads, start)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return seconds, peak[0] - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    start = GlobalWeights(Weights.of(Encoder(resnet18(3), mlp(512, HEADS))), Weights.of(mlp(HEADS.out, HEADS)))
    print(f"a model: {start.num_bytes() / 2**20:.0f} MB; {options.threads} thread(s), median of {options.repeats}")
    for clients in options.clients:
        with tempfile.TemporaryDirectory() as folder:
            uploads = [Upload(k, Path(folder), start) for k in range(clients)]
            for name, factory in AGGREGATORS.items():
                runs = [measure(factory(), uploads, start) for _ in range(options.repeats)]
                seconds, memory = (statistics.median(values) for values in zip(*runs, strict=True))
                print(f"{clients:3} clients  {name:17} {seconds:6.2f} s  {memory:5.0f} MB", flush=True)


if __name__ == "__main__":
    main()
