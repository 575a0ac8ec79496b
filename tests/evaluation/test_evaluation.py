import math

import numpy as np
import pytest
import torch
from torch import nn

from fedssl.data.dataset import Images
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.evaluation.context import LabelledData
from fedssl.evaluation.features import batch_size_for, compute_features, with_reestimated_batchnorm
from fedssl.evaluation.fitting import Fitting, fit
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.linear_probe import NAME, fit_linear, linear_probe_predictions
from fedssl.evaluation.monitor import Monitor, SpreadMonitor
from fedssl.evaluation.protocols import KNN, Linear
from fedssl.methods.collapse import feature_std
from fedssl.networks.backbones import convnet
from fedssl.networks.heads import Encoder


def probe_accuracy(train, labels, test, truth, epochs, batch_size, seed=0):
    fitting = Fitting(epochs, batch_size, 3e-3)
    classes = linear_probe_predictions(
        train, labels, test, num_classes=int(labels.max()) + 1, fitting=fitting, seed=seed
    )
    return (classes == truth).double().mean().item()


def test_knn_vote_by_hand():
    """Two neighbours of class 0 at cosine 0.8, one of class 1 at cosine 1: the temperature decides who wins."""
    train = torch.tensor([[0.8, 0.6], [0.8, -0.6], [1.0, 0.0], [-1.0, 0.0]])
    labels, test = torch.tensor([0, 0, 1, 1]), torch.tensor([[5.0, 0.0]])
    assert 2 * math.exp(0.8 / 1.0) > math.exp(1.0 / 1.0)
    assert knn_predictions(train, labels, test, k=3, temperature=1.0, num_classes=2).item() == 0
    assert 2 * math.exp(0.8 / 0.1) < math.exp(1.0 / 0.1)
    assert knn_predictions(train, labels, test, k=3, temperature=0.1, num_classes=2).item() == 1


def test_knn_against_loops_over_numpy():
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(60, 5)), rng.normal(size=(20, 5))
    labels, truth = rng.integers(0, 4, 60), rng.integers(0, 4, 20)
    right = 0
    for x, y in zip(test, truth, strict=True):
        similarity = [(x @ t) / np.linalg.norm(x) / np.linalg.norm(t) for t in train]
        votes = np.zeros(4)
        for index in np.argsort(similarity)[::-1][:15]:
            votes[labels[index]] += math.exp(similarity[index] / 0.1)
        right += int(votes.argmax() == y)
    tensors = [torch.tensor(a) for a in (train, labels, test, truth)]
    predictions = knn_predictions(*tensors[:3], k=15, temperature=0.1, num_classes=4)
    assert (predictions == tensors[3]).sum().item() == right


def test_knn_with_fewer_images_than_k():
    features = torch.eye(3)
    options = {"k": 200, "temperature": 0.1, "num_classes": 3}
    assert knn_predictions(features, torch.arange(3), features, **options).tolist() == [0, 1, 2]


def test_linear_probe_separates_what_is_separable_and_only_that():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    features = torch.eye(3)[labels] + 0.1 * torch.randn(300, 3, generator=generator)
    noise = torch.randn(300, 3, generator=generator)
    good = probe_accuracy(features[:200], labels[:200], features[200:], labels[200:], epochs=60, batch_size=50)
    blind = probe_accuracy(noise[:200], labels[:200], noise[200:], labels[200:], epochs=60, batch_size=50)
    assert good == 1.0
    assert blind < 0.55


@pytest.mark.parametrize("shuffle", [True, False])
def test_linear_probe_takes_the_steps_that_autograd_would(shuffle):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 8, generator=generator), torch.randint(0, 5, (50,), generator=generator)
    ours, theirs = nn.Linear(8, 5), nn.Linear(8, 5)
    theirs.load_state_dict(ours.state_dict())
    fitting = Fitting(epochs=3, batch_size=16, lr=0.01, shuffle=shuffle)  # the last batch has two images
    fit_linear(ours, x, y, fitting, seed=0)
    fit(theirs, lambda chosen: x[chosen], y, fitting, 0, NAME)
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-4, atol=1e-5)


def test_linear_probe_is_reproducible_by_seed():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 8, generator=generator), torch.arange(200) % 5
    results = [probe_accuracy(x[:100], y[:100], x[100:], y[100:], epochs=3, batch_size=10, seed=4) for _ in "ab"]
    assert results[0] == results[1]


def test_features_do_not_depend_on_batches_and_leave_the_mode():
    torch.manual_seed(0)
    backbone, pixels = convnet(3, width=4), synthetic_images(30, 10, 16, 0, "train").pixels
    whole, parts = compute_features(backbone, pixels, 30), compute_features(backbone, pixels, 7)
    torch.testing.assert_close(whole, parts)
    assert backbone.training
    assert backbone.bn1.num_batches_tracked.item() == 0, "evaluation must not move BatchNorm"


def test_reestimated_batchnorm_has_the_statistics_of_the_images():
    backbone = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten())
    pixels = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 1, 2, 2).contiguous()
    fitted = with_reestimated_batchnorm(backbone, pixels)
    assert fitted[0].running_mean.item() == pytest.approx(0.5)
    assert fitted[0].running_var.item() == pytest.approx(0.25 * 8 / 7)  # unbiased over 8 values
    assert fitted[0].momentum == 0.1
    assert backbone[0].running_mean.item() == 0.0, "the original is untouched"


TWO_EPOCHS = Linear(epochs=2)


def make_monitor(features="backbone", linear=TWO_EPOCHS):
    train, test = (synthetic_images(n, 10, 16, 0, part) for n, part in ((60, "train"), (30, "test")))
    return Monitor(LabelledData("synthetic", train, test), KNN(k=5, features=features), linear)


def test_monitor_names_and_agrees_with_its_parts():
    torch.manual_seed(0)
    monitor, encoder = make_monitor(), Encoder(convnet(3, width=4), nn.Linear(32, 3))
    quick, full = monitor.quick(encoder).values, monitor.full(encoder).values
    assert set(full) == {f"{n}{s}" for n in ("knn", "linear", "backbone_std") for s in ("", "_reestimated")}
    assert quick["knn"] == full["knn"]
    assert monitor.quick(encoder, reestimate=True).values["knn"] == full["knn_reestimated"]
    images = monitor.data.train, monitor.data.test
    train, test = (compute_features(encoder.backbone, part.pixels) for part in images)
    predictions = knn_predictions(train, images[0].labels, test, k=5, temperature=0.1, num_classes=10)
    assert full["knn"] == (predictions == images[1].labels).double().mean().item()
    assert "linear" not in make_monitor(linear=None).full(encoder).values


def test_monitor_on_projections_uses_the_projector():
    constant = nn.Linear(32, 3)
    nn.init.zeros_(constant.weight)
    encoder = Encoder(convnet(3, width=4), constant)
    assert make_monitor(features="projection").quick(encoder).values["backbone_std"] == pytest.approx(0.0, abs=1e-6)
    assert make_monitor(features="backbone").quick(encoder).values["backbone_std"] > 0.01


def test_perfect_features_give_perfect_accuracy():
    pixels = (torch.arange(4, dtype=torch.uint8) * 60)[:, None, None, None].expand(4, 1, 2, 2).contiguous()
    images = Images(pixels, torch.arange(4))

    class Angle(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return torch.stack([x.mean((1, 2, 3)).cos(), x.mean((1, 2, 3)).sin()], dim=1)

    monitor = Monitor(LabelledData("angles", images, images), KNN(k=1))
    assert monitor.quick(Encoder(Angle(), nn.Identity())).values["knn"] == 1.0


# --- large images and images without labels ---------------------------------------------------------------------------


def test_batches_are_smaller_for_larger_images():
    sizes = {side: batch_size_for(side, side) for side in (16, 32, 64, 224, 1000)}
    assert sizes == {16: 500, 32: 500, 64: 125, 224: 32, 1000: 32}


def test_votes_in_small_tables_are_the_same(monkeypatch):
    stream = torch.Generator().manual_seed(0)
    train, test = torch.randn(50, 8, generator=stream), torch.randn(30, 8, generator=stream)
    labels = torch.randint(0, 3, (50,), generator=stream)
    options = {"k": 5, "temperature": 0.1, "num_classes": 3}
    whole = knn_predictions(train, labels, test, **options)
    monkeypatch.setattr("fedssl.evaluation.knn.LARGEST_TABLE", 7 * 50)
    assert torch.equal(knn_predictions(train, labels, test, **options), whole)


def test_spread_is_that_of_features_of_evenly_spaced_images():
    torch.manual_seed(0)
    encoder = Encoder(convnet(3, width=4), nn.Linear(32, 8))
    pixels = synthetic_images(30, 10, 16, 0, "train").pixels
    chosen = pixels[[0, 7, 14, 22, 29]]
    for kind, module in (("backbone", encoder.backbone), ("projection", encoder)):
        monitor = SpreadMonitor(pixels, kind, most=5)
        assert torch.equal(monitor.looked_at, chosen)
        measured = monitor.full(encoder).values
        assert measured["backbone_std"] == feature_std(compute_features(module, chosen))
        fitted = with_reestimated_batchnorm(module, chosen)
        assert measured["backbone_std_reestimated"] == feature_std(compute_features(fitted, chosen))
        assert monitor.quick(encoder, reestimate=True).values == {"backbone_std": measured["backbone_std_reestimated"]}
