"""The losses against independent implementations: loops over numpy arrays, written from the papers' formulas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedssl.methods.losses import byol_loss, info_nce, nt_xent, simsiam_loss


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(5, 7)).astype(np.float32)


def test_byol_against_numpy_is_the_squared_distance_of_unit_vectors(pair):
    p, z = pair
    expected = np.mean([np.sum((unit(p[i]) - unit(z[i])) ** 2) for i in range(5)])
    assert byol_loss(torch.tensor(p), torch.tensor(z)).item() == pytest.approx(expected, rel=1e-5)


def test_byol_by_hand():
    p, z = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    assert byol_loss(p, z).item() == pytest.approx((2 + 0) / 2)  # cos 0 -> 2, cos 1 -> 0


def test_simsiam_against_numpy_and_by_hand(pair):
    p, z = pair
    expected = -np.mean([unit(p[i]) @ unit(z[i]) for i in range(5)])
    assert simsiam_loss(torch.tensor(p), torch.tensor(z)).item() == pytest.approx(expected, rel=1e-5)
    same = torch.tensor([[3.0, 4.0]])
    assert simsiam_loss(same, same * 10).item() == pytest.approx(-1.0)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_nt_xent_against_the_formula_written_as_loops(pair, temperature):
    z1, z2 = pair
    z = unit(np.concatenate([z1, z2]).astype(np.float64))
    losses = []
    for i in range(10):
        j = (i + 5) % 10
        others = sum(math.exp(z[i] @ z[k] / temperature) for k in range(10) if k != i)
        losses.append(-math.log(math.exp(z[i] @ z[j] / temperature) / others))
    assert nt_xent(torch.tensor(z1), torch.tensor(z2), temperature).item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_nt_xent_by_hand_for_one_image():
    """Two views of one image: the other view is the only candidate, so the loss is −log 1 = 0."""
    assert nt_xent(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 0.1).item() == pytest.approx(0.0)


def test_info_nce_against_the_formula_written_as_loops():
    rng = np.random.default_rng(1)
    q, k = unit(rng.normal(size=(4, 6))), unit(rng.normal(size=(4, 6)))
    queue = unit(rng.normal(size=(9, 6)))
    losses = []
    for i in range(4):
        positive = math.exp(q[i] @ k[i] / 0.2)
        negatives = sum(math.exp(q[i] @ n / 0.2) for n in queue)
        losses.append(-math.log(positive / (positive + negatives)))
    ours = info_nce(*(torch.tensor(x, dtype=torch.float32) for x in (q, k, queue)), 0.2).item()
    assert ours == pytest.approx(np.mean(losses), rel=1e-4)


def test_info_nce_by_hand():
    q = k = torch.tensor([[1.0, 0.0]])
    queue = torch.tensor([[0.0, 1.0]])
    assert info_nce(q, k, queue, 1.0).item() == pytest.approx(-math.log(math.e / (math.e + 1)))


def test_losses_are_differentiable_in_both_arguments():
    p, z = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    (byol_loss(p, z) + simsiam_loss(p, z) + nt_xent(p, z, 0.5)).backward()
    assert torch.isfinite(p.grad).all()
    assert F.normalize(z.grad, dim=1).abs().sum() > 0
