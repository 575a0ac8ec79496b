import hashlib
import itertools
import math

import pytest
import torch
from torch import nn

from fedssl.core.weights import (
    CHUNK,
    Average,
    Weights,
    conv_names,
    divergence,
    interpolate,
    matrix_names,
    non_finite,
)
from fedssl.networks.backbones import resnet18


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


def random_weights(seed):
    """Sizes around vector widths and the chunk, a second float type, an integer, a scalar and an empty tensor."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (7,), "b": (33, 5), "c": (4, 3, 3, 3), "d": (CHUNK + 13,), "e": (0,)}
    parameters = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    parameters["half"] = torch.randn(19, generator=generator).bfloat16()
    return Weights(parameters, {"count": torch.tensor(seed * 7 + 3), "mean": torch.randn(9, generator=generator)})


@pytest.mark.parametrize("clients", [1, 2, 5, 17])
def test_average_has_the_bits_and_types_of_the_formula_written_out(clients):
    members = [(k % 4 + 1, random_weights(k)) for k in range(clients)]
    total = sum(share for share, _ in members)
    mean = average(*members).tensors()
    for name, first in members[0][1].tensors().items():
        sum_ = (first if first.is_floating_point() else first.double()) * (members[0][0] / total)
        for share, one in members[1:]:
            sum_ = torch.add(sum_, one.tensors()[name], alpha=share / total)
        by_hand = sum_ if first.is_floating_point() else sum_.round().to(first.dtype)
        assert mean[name].dtype == first.dtype
        assert torch.equal(mean[name], by_hand), name


def test_average_refuses_a_model_that_lacks_a_tensor():
    with pytest.raises(KeyError, match="count"):
        average((1, weights([1.0])), (1, Weights({"w": torch.ones(1)})))


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


def squared_differences(a, b):
    """Exact: a float32 difference has 24 bits, its square 48, and float64 holds 53."""
    return ((a - b).double() ** 2).flatten().tolist()


@pytest.mark.parametrize("size", [1, 1000, CHUNK - 1, CHUNK])
def test_divergence_of_tensors_up_to_a_chunk_has_the_bits_of_one_float64_sum(size):
    a, b = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    expected = math.sqrt(float((a - b).double().square().sum()))
    assert divergence(Weights({"w": a}), Weights({"w": b}), "l2") == expected


@pytest.mark.parametrize("size", [CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])
def test_divergence_of_larger_tensors_is_exact_to_the_last_digits_of_a_float64(size):
    """Chunks are summed in another order than one tensor: lambda_k of FedEMA may move by 1e-15 of itself, not more."""
    a, b = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4))
    exact = math.sqrt(math.fsum(squared_differences(a, b)))
    assert divergence(Weights({"w": a}), Weights({"w": b}), "l2") == pytest.approx(exact, rel=1e-15, abs=0)


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
    over_all = divergence(of(3.0, 1.0, 50.0), of(0.0, 0.0, 0.0), "mean-matrix")
    assert over_all == pytest.approx((3.0 + math.sqrt(2.0) + 50 + 50) / 4)


def test_mean_matrix_looks_at_linear_layers_and_convolutions_and_not_at_norms():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm(4), nn.Linear(4, 5), nn.BatchNorm1d(5))
    assert matrix_names(Weights.of(network)) == ["0.weight", "2.weight"]


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


def test_a_sum_that_overflows_is_not_taken_for_an_infinite_weight():
    largest = torch.finfo(torch.float32).max
    huge = Weights({"huge": torch.full((4,), largest), "half": torch.full((9,), 6e4, dtype=torch.float16)})
    assert list(non_finite(huge)) == []
    both_signs = Weights({"w": torch.tensor([math.inf, -math.inf])})
    assert list(non_finite(both_signs)) == ["w"]


def test_digest_is_that_of_names_shapes_and_bytes():
    held = random_weights(5)
    sha = hashlib.sha256()
    for name, tensor in sorted(held.tensors().items()):
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    assert held.digest() == sha.hexdigest()
    strided = held.map(lambda _, tensor: torch.stack([tensor, tensor], dim=-1)[..., 0])
    assert strided.digest() == held.digest()
