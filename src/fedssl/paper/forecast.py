"""What a plan will take, before it is begun: a few real training steps of each distinct network, and arithmetic."""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from fedssl.data.dataset import where
from fedssl.evaluation.features import compute_features
from fedssl.evaluation.fitting import Fitting
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.linear_probe import linear_probe_predictions
from fedssl.evaluation.protocols import PROTOCOLS
from fedssl.experiment.build.data import build_dataset, build_partition, public_images
from fedssl.experiment.build.parts import Parts, build
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import Config
from fedssl.experiment.engine_choice import seconds_per_step
from fedssl.experiment.progress.views import View
from fedssl.paper.plan import PlannedRun

CIFAR_TRAIN, CIFAR_TEST = 50_000, 10_000
REPEATS = 3  # of the calibration's steps: other work on the machine disturbs some
LONG_STEP = 1.0  # seconds; a step that takes longer is measured once
SAMPLE = 500  # images to time a forward pass with
BACKWARD = 3.0  # a step of fine-tuning, in forward passes
START_SECONDS = 6.0  # two processes that import torch and read the images


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """What follows from the settings alone."""

    train_images: int
    test_images: int
    labelled: int
    steps: int  # of all clients and rounds
    images: int  # trained on in all, each view pair once
    evaluations: int  # encoders that the monitor looks at, a full look counted four times
    clients: int

    @classmethod
    def of(cls, config: Config) -> "Amounts":
        training = config.local_training
        train, test, clients = _counted(config)
        labelled = round(config.data.settings["labelled_fraction"] * train)
        held = max(int((train - labelled) // clients * config.partition.settings.get("data_amount", 1.0)), 1)
        sampled = config.client_sampling.clients_per_round or clients
        steps = training.steps_per_epoch(held) * training.epochs * sampled * config.run.rounds
        steps += _base_steps(config)
        every = config.evaluation.every
        encoders = 1 if config.update_rule.factory.shares else clients
        looks = (config.run.rounds - 1) // every if every else 0
        evaluations = encoders * (looks + 2) + 2  # both modes of BatchNorm, first and last
        return cls(
            train_images=train,
            test_images=test,
            labelled=labelled,
            steps=steps,
            images=steps * min(training.batch_size, held),
            evaluations=evaluations,
            clients=clients,
        )


def _counted(config: Config) -> tuple[int, int, int]:
    """(training images, test images, clients), by the settings, or where those leave it to the data by these."""
    data, clients = config.data.settings, config.partition.settings.get("num_clients")
    if where(config.data.factory) != "here" and clients is not None:
        return data.get("train_images") or CIFAR_TRAIN, data.get("test_images") or CIFAR_TEST, clients
    dataset = build_dataset(config.data)
    labelled = dataset.labelled
    return len(dataset.train), len(labelled[1]) if labelled else 0, len(build_partition(config, dataset).clients)


def _base_steps(config: Config) -> int:
    """The training steps of a base encoder before round 1, for methods that have one."""
    public = public_images(config)
    return config.local_training.steps_per_epoch(public.count) * public.base_epochs


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured here, with one network."""

    step: float  # seconds a training step
    forward: float  # seconds per image through the backbone
    knn: float  # seconds per pair of a test and a training image
    linear: float  # seconds per image and epoch of a linear probe
    state_bytes: int  # of a client's state
    encoder_bytes: int

    @classmethod
    def measure(cls, config: Config) -> "Speed":
        parts = _small_parts(config)
        steps = [seconds_per_step(parts.client, 0)]
        while steps[0] < LONG_STEP and len(steps) < REPEATS:
            steps.append(seconds_per_step(parts.client, 0))
        backbone, dataset = parts.client.method.online_encoder.backbone, parts.dataset
        pixels = dataset.train.pixels[:SAMPLE]
        features = compute_features(backbone, pixels)
        labels = torch.arange(len(features)) % 10
        votes = {"k": config.evaluation.k, "temperature": 0.1, "num_classes": 10}
        fitting = Fitting(epochs=5, batch_size=512, lr=3e-3)
        return cls(
            step=statistics.median(steps),
            forward=_seconds(lambda: compute_features(backbone, pixels)) / len(pixels),
            knn=_seconds(lambda: knn_predictions(features, labels, features, **votes)) / len(features) ** 2,  # type: ignore[arg-type]
            linear=_seconds(
                lambda: linear_probe_predictions(features, labels, features, num_classes=10, fitting=fitting)
            )
            / (5 * len(features)),
            state_bytes=parts.client.state_bytes(),
            encoder_bytes=parts.client.first_weights.online.num_bytes(),
        )


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _small_parts(config: Config) -> Parts:
    """The run's network and batches on a few synthetic images of the right size, at one client."""
    raw = config.as_raw()
    images = SAMPLE + config.local_training.batch_size + public_images(config).count
    size = config.data.settings.get("image_size", 32)
    raw["data"] = {"name": "synthetic", "train_images": images, "test_images": 10, "image_size": size}
    raw["partition"] = {"name": "iid", "num_clients": 1}
    raw["client_sampling"] = {}
    return build(resolve(raw, config.allow_code))


@dataclass(frozen=True)
class RunForecast:
    seconds: float
    disk: int
    images: int


class Forecast:
    """Measures each distinct network once and predicts runs from it."""

    def __init__(self, evaluation_epochs: dict[str, int]) -> None:
        self.epochs = evaluation_epochs
        self._speeds: dict[str, Speed] = {}

    def measure(self, runs: Iterable[PlannedRun], view: View) -> None:
        """Every distinct network of the runs, which takes seconds to minutes each."""
        configs = {_kind(run.config): run.config for run in runs}
        with view:
            view.begin("measuring", len(configs))
            for config in configs.values():
                view.progress(f"{config.method.name} with {config.network.name}", 0, 1)
                self.speed(config)
                view.advance()

    def speed(self, config: Config) -> Speed:
        """Measured with as many threads as the run has."""
        kind = _kind(config)
        if kind not in self._speeds:
            before = torch.get_num_threads()
            torch.set_num_threads(config.run.threads or before)
            try:
                self._speeds[kind] = Speed.measure(config)
            finally:
                torch.set_num_threads(before)
        return self._speeds[kind]

    def of(self, run: PlannedRun) -> RunForecast:
        config, speed, amounts = run.config, self.speed(run.config), Amounts.of(run.config)
        look = (amounts.train_images + amounts.test_images) * speed.forward
        look += amounts.train_images * amounts.test_images * speed.knn
        seconds = START_SECONDS + amounts.steps * speed.step + amounts.evaluations * look
        shares = config.update_rule.factory.shares
        clients, kept = amounts.clients, config.run.keep_checkpoints + 1
        for protocol in run.protocols:
            seconds += (1 if shares else clients) * self._protocol(protocol, speed, amounts)
        return RunForecast(seconds, kept * (clients * speed.state_bytes + speed.encoder_bytes), amounts.images)

    def _protocol(self, protocol: str, speed: Speed, amounts: Amounts) -> float:
        if PROTOCOLS[protocol]["paper"].frozen:
            fitted = amounts.train_images * self.epochs["linear"] * speed.linear
            return fitted + (amounts.train_images + amounts.test_images) * speed.forward
        tuned = BACKWARD * amounts.labelled * self.epochs["semi"] * speed.forward
        return tuned + amounts.test_images * speed.forward

    @cached_property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    def peak_memory(self) -> int:
        """Bytes that this process, or its GPU, has needed at most: what one run needs besides its images."""
        if self.device == "cuda":
            return int(torch.cuda.max_memory_allocated())
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _kind(config: Config) -> str:
    """Runs of one kind take the same time per step."""
    raw = config.as_raw()
    training = {key: raw["local_training"][key] for key in ("batch_size", "precision", "compile")}
    same = [raw["method"], raw["network"], raw["augmentation"], training, raw["data"].get("image_size", 32)]
    return json.dumps([*same, config.run.threads, config.run.device, config.update_rule.factory.shares], sort_keys=True)
