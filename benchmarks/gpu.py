"""For machines with a GPU: an epoch of the paper's network in fp32, bf16 and compiled, beside its bare steps.

    make bench-gpu
    python -m benchmarks.gpu [--cpu]

Prints images per second, the time in views and in steps, what an epoch takes beyond both (waiting), and the peak of the
device's memory, and what is expected of them. `--cpu` runs the same with a small network, to see that the script works.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import plain
from fedssl.core.stopwatch import Stopwatch
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.federation.local_training import LocalTraining, Stepper, train_locally, training_mode
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import convnet, feature_size, resnet18
from fedssl.networks.heads import HeadSizes

MODES = {"fp32": {}, "bf16": {"precision": "bf16"}, "compiled": {"compile": True}}
RECIPE = Recipe()
EXPECTED = (
    "expected: views below 10 % of an epoch; an epoch within 5 % of bare steps and views (last but one column: at most "
    "1.05);\nbf16 faster than fp32 on GPUs with tensor cores, compiled not slower than fp32"
)


@dataclass(frozen=True)
class Case:
    device: torch.device
    images: int
    batch_size: int
    small: bool

    def method(self) -> BYOL:
        backbone = convnet(3, width=8) if self.small else resnet18(3)
        heads = HeadSizes(64, 32) if self.small else HeadSizes()
        method = BYOL(backbone, feature_size(backbone, 3, (32, 32)), heads)
        return method.to(self.device, memory_format=torch.channels_last)

    def wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def timed(self, work: Callable[[], object]) -> float:
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start


def measure(case: Case, mode: str) -> str:
    """One line: an epoch undisturbed, one by its parts, and the same number of steps on views in memory."""
    training = LocalTraining(epochs=1, batch_size=case.batch_size, **MODES[mode])  # type: ignore[arg-type]
    pixels = synthetic_images(case.images, 10, 32, 0, "benchmark").pixels
    method, clock = case.method(), Stopwatch(on=True, device=case.device)
    train_locally(method, pixels, RECIPE, training, plain.LR, 0)  # warms up, and compiles
    if case.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(case.device)
    epoch = case.timed(lambda: train_locally(method, pixels, RECIPE, training, plain.LR, 0))
    memory = torch.cuda.max_memory_allocated(case.device) / 1e6 if case.device.type == "cuda" else float("nan")
    train_locally(method, pixels, RECIPE, training, plain.LR, 0, clock=clock)
    parts = clock.taken()
    bare = case.timed(bare_steps(case, method, training, pixels))
    views, steps = parts["augment"], parts["steps"]
    return (
        f"{mode:9}{case.images / epoch:11,.0f}{views:9.3f}{steps:9.3f}{max(epoch - views - bare, 0):10.3f}"
        f"{bare:12.3f}{epoch / (bare + views):17.2f}{memory:13,.0f}"
    )


def bare_steps(case: Case, method: BYOL, training: LocalTraining, pixels: torch.Tensor) -> Callable[[], None]:
    """As many steps as an epoch has, on views that are there already."""
    training_mode(method, training)
    stepper = Stepper(method, training, lr=plain.LR, device=case.device)
    batch = pixels[: case.batch_size].to(case.device)
    views = make_views(batch, RECIPE, torch.Generator().manual_seed(0))
    stepper.step(views)

    def steps() -> None:
        for _ in range(training.steps_per_epoch(len(pixels))):
            stepper.step(views)

    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="a small network on the CPU: the numbers say nothing")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print("no GPU here: nothing was measured; --cpu tries the script with a small network", file=sys.stderr)
        return 1
    device = torch.device("cpu" if options.cpu else "cuda")
    case = Case(device, images=64 if options.cpu else 10_240, batch_size=16 if options.cpu else 128, small=options.cpu)
    print(
        f"{'CPU' if options.cpu else torch.cuda.get_device_name(device)}, torch {torch.__version__}, seconds per epoch"
    )
    print(
        f"{'':9}{'images/s':>11}{'views':>9}{'steps':>9}{'waiting':>10}{'bare steps':>12}{'of bare + views':>17}",
        end="",
    )
    print(f"{'peak, MB':>13}")
    for mode in MODES:
        if not (options.cpu and mode == "compiled"):  # compiling for a CPU takes minutes
            print(measure(case, mode), flush=True)
    print(EXPECTED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
