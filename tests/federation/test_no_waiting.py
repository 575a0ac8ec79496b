"""An epoch never asks the device for a value: on a GPU each such question would wait for all work before it.

Two ways to see it without a GPU. A profiler's trace on the CPU names what was called; but there a copy to the host is
a copy like any other. Tensors of the device "meta" have no values: nothing can be read from them nor copied out.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import RECIPES
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.methods import METHODS
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import BACKBONES, convnet
from fedssl.networks.heads import HeadSizes

WAITS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}
PIXELS = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LARS = {"optimizer": "lars", "clip_gradient": 1.0, "accumulate": 2}
ADDED = {"optimizer": "adamw", "schedule_per": "step", "decorrelation": 0.1, "uniformity": 0.01, "proximal": 0.1}


def small(method, name=""):
    backbone = BACKBONES["vit-tiny"](3, width=12, depth=1) if name == "mae" else convnet(3, width=4)
    return method(backbone, backbone(torch.zeros(2, 3, 16, 16)).shape[1], HeadSizes(16, 8))


def traced_calls(method, settings):
    """What the second of three steps calls, with its views: the first warms up, the last is reported."""
    traced = []

    def progress(text, done, total, images):
        if done == 1:
            traced.append(profile(activities=[ProfilerActivity.CPU]))
            traced[0].__enter__()
        elif done == 2:
            traced[0].__exit__(None, None, None)

    training = LocalTraining(epochs=1, batch_size=8, **settings)
    train_locally(method, PIXELS, RECIPES["dino"](), training, 0.1, 0, progress)
    return {event.key for event in traced[0].key_averages()}


@pytest.mark.parametrize("name", ["byol", "simclr", "simsiam", "mocov2", "vicreg", "barlow", "dino"])
@pytest.mark.parametrize("settings", [{}, LARS])
def test_no_value_is_asked_for_inside_an_epoch(name, settings):
    names = traced_calls(small(METHODS[name]), settings)
    assert "aten::convolution" in names or "aten::conv2d" in names
    assert not names & WAITS


def steps_without_values(method, settings, received=None):
    """How many of two steps an epoch comes to where no value can be read, and what then went wrong."""
    done = []
    training = LocalTraining(epochs=1, batch_size=8, **settings)
    with pytest.raises((RuntimeError, TypeError)) as stopped:
        train_locally(
            method.to("meta"),
            PIXELS[:16],
            RECIPES["dino"](),
            training,
            0.1,
            0,
            progress=lambda *now, images: done.append(now),
            received=received,
        )
    return len(done), str(stopped.value)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("settings", [{}, LARS, ADDED])
def test_an_epoch_runs_to_its_end_where_nothing_can_be_copied_to_the_host(name, settings, monkeypatch):
    """Only the report, after the last step, reads the mean loss. DINO reads one number before its first step."""
    if name == "mae" and "uniformity" in settings:
        pytest.skip("it has no projections of whole images, and says so")
    monkeypatch.setattr(METHODS["dino"], "start_epoch", lambda method: None)
    method = small(METHODS[name], name)
    received = Weights.of(method.online_encoder), Weights.of(method.predictor)
    assert steps_without_values(method, settings, received) == (2, "Tensor.item() cannot be called on meta tensors")


READS = {
    "item": lambda loss: loss.item(),
    "float": lambda loss: float(loss.detach()),
    "tolist": lambda loss: loss.detach().tolist(),
    "if": lambda loss: 1 if loss > 0 else 2,
    "equal": lambda loss: torch.equal(loss, loss + 1),
    "nonzero": lambda loss: loss.nonzero(),
    "mask": lambda loss: loss[None][loss[None] > 0],
    "numpy": lambda loss: loss.detach().numpy(),
    "cpu": lambda loss: loss.detach().cpu(),
    "to": lambda loss: loss.detach().to("cpu"),
    "to, later": lambda loss: loss.detach().to("cpu", non_blocking=True),
    "copy_": lambda loss: torch.zeros(()).copy_(loss.detach()),
}
SHOWN = ("item", "float", "if", "equal")  # by a trace on the CPU; the others it does not tell from harmless calls


class Asking(BYOL):
    """Reads its loss in every step, as `read` does it."""

    def loss(self, views):
        loss = super().loss(views)
        self.read(loss)
        return loss


def asking(read):
    method = small(Asking)
    method.read = READS[read]
    return method


@pytest.mark.parametrize("read", READS)
def test_a_loss_that_is_read_stops_in_the_first_step(read):
    done, why = steps_without_values(asking(read), {})
    assert done == 0, why


@pytest.mark.parametrize("read", SHOWN)
def test_the_trace_shows_a_loss_that_is_read(read):
    assert traced_calls(asking(read), {}) & WAITS
