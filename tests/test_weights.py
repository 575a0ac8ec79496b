import itertools
import math

import pytest
import torch
from torch import nn

from fedssl.networks.backbones import resnet18
from fedssl.weights import Average, Weights, conv_names, divergence, interpolate, non_finite


def weights(value, counter=0):
    return Weights({"w": torch.tensor(value, dtype=torch.float32)}, {"count": torch.tensor(counter)})


def average(*members):
    mean = Average(sum(share for share, _ in members))
    for share, member in members:
        mean.add(share, member)
    return mean.weights()


def test_weighted_average_by_hand():
    mean = average((1, weights([1.0, 2.0])), (3, weights([5.0, 10.0])))
    assert mean.parameters["w"].tolist() == [4.0, 8.0]  # (1·1 + 3·5) / 4, (1·2 + 3·10) / 4


def test_average_keeps_counters_whole():
    mean = average((1, weights([0.0], 7)), (1, weights([0.0], 8)))
    assert mean.buffers["count"].dtype == torch.int64
    assert mean.buffers["count"].item() == 8  # 7.5, rounded to even


def test_average_does_not_touch_its_input():
    first = weights([1.0])
    average((1, first), (1, weights([3.0])))
    assert first.parameters["w"].item() == 1.0


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
def test_interpolate_by_hand_and_exact_at_both_ends(mu):
    torch.manual_seed(0)
    local, global_ = weights(torch.randn(50).tolist(), 10), weights(torch.randn(50).tolist(), 20)
    mixed = interpolate(local, global_, mu)
    if mu in (0.0, 1.0):
        assert mixed.digest() == (local if mu == 1.0 else global_).digest()
    else:
        expected = mu * local.parameters["w"] + (1 - mu) * global_.parameters["w"]
        torch.testing.assert_close(mixed.parameters["w"], expected)
        assert mixed.buffers["count"].item() == 17  # 0.3 · 10 + 0.7 · 20


def test_l2_divergence_by_hand_ignores_buffers():
    a = Weights({"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([[4.0]])}, {"running_mean": torch.tensor([100.0])})
    b = Weights({"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([[0.0]])}, {"running_mean": torch.tensor([0.0])})
    assert divergence(a, b, "l2") == 5.0


def test_mean_conv_divergence_by_hand():
    def of(first, second, other):
        shape = (1, 1, 1, 1)
        return Weights(
            {
                "backbone.conv1.weight": torch.full(shape, first),
                "backbone.layer1.0.conv2.weight": torch.full((2, 1, 1, 1), second),
                "backbone.layer1.0.shortcut.0.weight": torch.full(shape, other),  # a convolution, not named conv*
                "projector.0.weight": torch.full((1, 1), other),
            }
        )

    distance = divergence(of(3.0, 1.0, 50.0), of(0.0, 0.0, 0.0), "mean-conv")
    assert distance == pytest.approx((3.0 + math.sqrt(2.0)) / 2)


def test_mean_conv_looks_at_conv_layers_of_a_resnet_and_not_at_shortcuts():
    names = conv_names(Weights.of(resnet18(3, width=4)))
    assert len(names) == 17  # the stem and 8 blocks of two
    assert not any("shortcut" in name for name in names)


def test_order_of_keys_does_not_change_a_bit():
    torch.manual_seed(1)
    tensors = {name: torch.randn(99) for name in "abcde"}
    results = set()
    for order in itertools.permutations(tensors):
        a = Weights({name: tensors[name] for name in order})
        results.add((divergence(a, a.map(lambda _, t: t * 1.1), "l2"), a.digest()))
    assert len(results) == 1


def test_of_copies_and_load_into_restores_every_bit():
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    saved = Weights.of(module)
    digest = saved.digest()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert saved.digest() == digest, "training the module changed the copy"
    assert Weights.of(module).digest() != digest
    saved.load_into(module)
    assert Weights.of(module).digest() == digest
    with torch.no_grad():
        module[0].weight.zero_()
    assert saved.digest() == digest, "the module shares memory with what was loaded"


def test_parameters_and_buffers_are_told_apart():
    found = Weights.of(nn.BatchNorm1d(2))
    assert list(found.parameters) == ["bias", "weight"]
    assert list(found.buffers) == ["num_batches_tracked", "running_mean", "running_var"]


def test_without_and_overlaid_are_inverse():
    full = Weights.of(nn.BatchNorm1d(2))
    private = frozenset({"running_mean", "running_var", "num_batches_tracked"})
    assert full.overlaid(full.without(private)).digest() == full.digest()
    assert list(full.without(private).tensors()) == ["bias", "weight"]


def test_num_bytes():
    assert weights([1.0, 2.0]).num_bytes() == 2 * 4 + 8


def test_non_finite_names_the_tensor():
    broken = Weights(
        {"good": torch.ones(2), "bad": torch.tensor([1.0, float("nan")])}, {"inf": torch.tensor([math.inf])}
    )
    assert list(non_finite(broken)) == ["bad", "inf"]
