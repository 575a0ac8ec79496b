"""Two threads of one run, on two free cores and beside a program that keeps one of them busy.

    python -m benchmarks.threads

Baseline: threads that wait for each other as long as GNU OpenMP has them wait. Time on the clock: CPU time would count
waiting as work. The busy program is ours; nothing else may run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.measuring import Row, faster, not_measured, within
from fedssl.core.threads import TURNS
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.methods.simclr import SimCLR
from fedssl.networks.backbones import convnet, feature_size
from fedssl.networks.heads import HeadSizes

USUAL = "300000"  # turns that libgomp's threads wait awake if nobody says otherwise
NAMES = "2 two threads, convnet, width 24", "2 two threads beside a busy program"
AGAINST = "as OpenMP waits"
STEPS, BATCH = 8, 64


def trained() -> float:
    """Seconds that some steps take when all is warm."""
    torch.set_num_threads(2)
    backbone = convnet(3, width=24, stem_stride=2)
    method = SimCLR(backbone, feature_size(backbone, 3, (32, 32)), HeadSizes(256, 128))
    pixels = synthetic_images(BATCH * STEPS, 10, 32, 0, "train").pixels
    for turn in range(2):
        start = time.perf_counter()
        train_locally(method, pixels, Recipe(), LocalTraining(epochs=1, batch_size=BATCH), 0.01, turn)
    return time.perf_counter() - start


def seconds(turns: str) -> float:
    """The same in a process whose threads wait for so many turns."""
    command = [sys.executable, "-m", "benchmarks.threads", "--train"]
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    own |= {"GOMP_SPINCOUNT": turns, "OMP_NUM_THREADS": "2"}
    return float(subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout)


@contextmanager
def busy() -> Iterator[None]:
    """Another program that never rests, of a session of its own, as other people's are: Linux shares cores by these."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        time.sleep(0.5)
        yield
    finally:
        other.kill()
        other.wait()


def rows() -> list[Row]:
    if len(os.sched_getaffinity(0)) != 2:
        return [not_measured(name, "not measured: needs two cores", "") for name in NAMES]
    alone = within(NAMES[0], AGAINST, "s", seconds(USUAL), seconds(TURNS), 1.1)
    with busy():
        beside = faster(NAMES[1], AGAINST, "s", seconds(USUAL), seconds(TURNS), 4.0)
    return [alone, beside]


if __name__ == "__main__":
    if sys.argv[1:] == ["--train"]:
        print(trained())
    else:
        for row in rows():
            print(row)
