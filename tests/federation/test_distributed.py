"""One client on several devices: on the CPU, with two processes and gloo."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import global_stream
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.experiment.experiment import load
from fedssl.federation.distributed import train_on_devices
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.federation.messages import ClientError
from fedssl.methods import METHODS
from tests.helpers.devices import Dies, Raises, Sleeps, WithoutBatchNorm
from tests.helpers.small import HEADS, TINY, make_images, make_method

SETTINGS = LocalTraining(epochs=1, batch_size=8)
TWO = replace(SETTINGS, devices=2)


def made(factory, **settings):
    with global_stream(0, "initial-weights"):
        return factory(WithoutBatchNorm(), 16, HEADS, **settings)


def train(how, method, settings, images=27):
    """The report, and the loss of the last epoch: 27 images are 3 batches of 8."""
    pixels = make_images(images).pixels
    return how(method, pixels, recipe=Recipe(), settings=settings, lr=0.05, seed=3)


@pytest.mark.parametrize(
    ("name", "own", "training"),
    [
        ("byol", {}, {"freeze": 1, "clip_gradient": 1.0, "layer_decay": 0.5}),
        ("simclr", {}, {"accumulate": 2, "batch_size": 9}),
        ("mocov2", {"queue_size": 20, "out_dim": 8}, {}),
    ],
)
def test_two_processes_train_as_one_does_with_the_same_batches(name, own, training):
    """Also a batch that does not divide, negatives of the whole batch, frozen blocks and a queue.

    One epoch: rounding differs between one batch and two halves of it, and grows from step to step.
    """
    one, two = made(METHODS[name], **own), made(METHODS[name], **own)
    expected = train(train_locally, one, replace(SETTINGS, **training))
    report = train(train_on_devices, two, replace(TWO, **training))
    assert (report.steps, report.images) == (expected.steps, expected.images)
    assert report.loss == pytest.approx(expected.loss, rel=2e-5)
    assert report.feature_std == pytest.approx(expected.feature_std, rel=1e-3)
    torch.testing.assert_close(Weights.of(two).tensors(), Weights.of(one).tensors(), rtol=1e-3, atol=1e-4)
    assert report.core_seconds_elsewhere > 0


def test_batchnorm_of_a_backbone_sees_the_part_of_its_process_on_a_cpu():
    """The heads see the whole batch. The statistics kept are those of the first process, of its half of the images."""
    whole, parted = make_method("simsiam", width=8), make_method("simsiam", width=8)
    expected = train(train_locally, whole, SETTINGS, images=8)
    report = train(train_on_devices, parted, TWO, images=8)
    assert report.loss == pytest.approx(expected.loss, abs=0.1), "half a batch normalises a little otherwise"
    assert report.loss != expected.loss
    counts = Weights.of(parted).buffers["online_encoder.backbone.bn1.num_batches_tracked"]
    assert int(counts) == 2
    apart = Weights.of(parted).buffers["online_encoder.backbone.bn1.running_mean"]
    together = Weights.of(whole).buffers["online_encoder.backbone.bn1.running_mean"]
    assert not torch.equal(apart, together)


@pytest.mark.parametrize(
    ("method", "text"),
    [(Dies, r"local_training\.devices: the process of device 1 ended with code 7"), (Raises, "no such luck")],
)
def test_a_process_that_dies_or_fails_is_the_clients_failure_and_no_hang(method, text):
    started = time.monotonic()
    with pytest.raises(ClientError, match=text) as raised:
        train(train_on_devices, made(method), TWO)
    assert raised.value.code == "exception"
    assert time.monotonic() - started < 120


def test_a_time_limit_ends_all_processes():
    def late(*counts, images):
        raise ClientError("timeout", "step 1")

    with pytest.raises(ClientError, match="step 1"):
        train(partial(train_on_devices, progress=late), made(Sleeps), TWO, images=64)


def test_a_run_on_two_devices_and_what_is_refused(tmp_path):
    settings = {**TINY, "rounds": 1, "evaluation.every": 0, "partition.num_clients": 1, "local_training.devices": 2}
    settings |= {"partition.name": "iid", "method.name": "fedca", "method.public_images": 8, "method.align_epochs": 1}
    summary = load("smoke", settings).run(tmp_path / "run").summary
    assert summary["status"] == "finished"
    assert summary["failures"] == 0
    with pytest.raises(FedsslError, match=r"local_training\.devices: with engine = 'processes' clients share"):
        load("smoke", {**settings, "engine": "processes", "workers": 1}).run(tmp_path / "other")
    with pytest.raises(FedsslError, match=r"local_training\.devices: 2 are needed, here are 1 \(mps\)"):
        TWO.check(torch.device("mps"))
