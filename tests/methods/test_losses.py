"""The losses against independent implementations: loops over numpy arrays, written from the papers' formulas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedssl.methods.losses import (
    barlow_loss,
    byol_loss,
    dino_loss,
    info_nce,
    masked_patch_loss,
    nt_xent,
    simsiam_loss,
    uniformity,
    vicreg_loss,
)


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


# --- VICReg, Barlow Twins, alignment and uniformity ------------------------------------------------------------------


def test_vicreg_against_the_formula_written_as_loops(pair):
    z1, z2 = (z.astype(np.float64) for z in pair)
    invariance = np.mean([(z1[i, j] - z2[i, j]) ** 2 for i in range(5) for j in range(7)])
    variance = covariance = 0.0
    for z in (z1, z2):
        table = np.cov(z, rowvar=False)  # divides by N − 1
        variance += np.mean([max(0.0, 1 - math.sqrt(table[j, j] + 1e-4)) for j in range(7)]) / 2
        covariance += sum(table[i, j] ** 2 for i in range(7) for j in range(7) if i != j) / 7
    got = vicreg_loss(torch.tensor(pair[0]), torch.tensor(pair[1]), 25.0, 20.0, 2.0).item()
    assert got == pytest.approx(25 * invariance + 20 * variance + 2 * covariance, rel=1e-5)


def test_vicreg_by_hand():
    """Two images at (1, 1) and (−1, −1): deviations sqrt 2 are enough, the covariance is 2; the views are 0.5 apart."""
    z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert vicreg_loss(z, z + 0.5, 25.0, 25.0, 1.0).item() == pytest.approx(25 * 0.25 + 0 + 2 * (2 * 2**2) / 2)
    same = torch.ones(3, 2)  # collapsed: every deviation is sqrt(1e-4)
    assert vicreg_loss(same, same, 25.0, 25.0, 1.0).item() == pytest.approx(25 * (1 - 0.01))


def test_barlow_against_the_formula_written_as_loops(pair):
    a, b = ((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5) for z in (one.astype(np.float64) for one in pair))
    expected = 0.0
    for i in range(7):
        for j in range(7):
            c = sum(a[n, i] * b[n, j] for n in range(5)) / 5
            expected += (1 - c) ** 2 if i == j else 0.0051 * c**2
    assert barlow_loss(torch.tensor(pair[0]), torch.tensor(pair[1]), 0.0051).item() == pytest.approx(expected, rel=1e-5)


def test_barlow_by_hand():
    """Columns ±1: the first is the same in both views (C = 1), the second is turned round (C = −1)."""
    z1 = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    z2 = z1 * torch.tensor([1.0, -1.0])
    assert barlow_loss(z1, z2, 0.5).item() == pytest.approx(0 + 2**2, rel=1e-4)
    doubled = z1[:, [0, 0]]  # two columns that are one: C_12 = C_21 = 1
    assert barlow_loss(doubled, doubled, 0.5).item() == pytest.approx(0.5 * 2, rel=1e-4)


def test_uniformity_against_the_formula_written_as_loops(pair):
    z = unit(pair[0].astype(np.float64))
    pairs = [math.exp(-2 * np.sum((z[i] - z[j]) ** 2)) for i in range(5) for j in range(5) if i != j]
    assert uniformity(torch.tensor(pair[0]), 2.0).item() == pytest.approx(math.log(np.mean(pairs)), rel=1e-5)


def test_uniformity_by_hand():
    """Opposite points are 2 apart, neighbours on the square sqrt 2; all in one point: log 1."""
    square = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-2.0, 0.0], [0.0, -1.0]])
    expected = math.log((2 * math.exp(-2 * 2) + math.exp(-2 * 4)) / 3)
    assert uniformity(square, 2.0).item() == pytest.approx(expected, rel=1e-5)
    assert uniformity(torch.ones(4, 3), 2.0).item() == pytest.approx(0.0, abs=1e-5)


# --- DINO and masked patches -----------------------------------------------------------------------------------------


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def test_dino_against_the_formula_written_as_loops():
    """Four views, two of them seen by the teacher: pairs of a view with itself do not count."""
    rng = np.random.default_rng(2)
    student, teacher, centre = rng.normal(size=(4, 3, 6)), rng.normal(size=(2, 3, 6)), rng.normal(size=6)
    losses = []
    for g in range(2):
        for v in range(4):
            for b in range(3):
                if g != v:
                    target = softmax((teacher[g, b] - centre) / 0.04)
                    losses.append(-np.sum(target * np.log(softmax(student[v, b] / 0.1))))
    given = [torch.tensor(x, dtype=torch.float32) for x in (student, teacher, centre)]
    assert dino_loss(*given, 0.1, 0.04).item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_dino_by_hand():
    """Two prototypes, a sure teacher: −log of what the student gives to its choice; centred, it is undecided."""
    student = torch.tensor([[[math.log(3.0), 0.0]], [[math.log(3.0), 0.0]]])  # 3/4 and 1/4 in both views
    teacher = torch.tensor([[[9.0, 0.0]], [[9.0, 0.0]]])
    assert dino_loss(student, teacher, torch.zeros(2), 1.0, 0.01).item() == pytest.approx(-math.log(0.75), rel=1e-5)
    centred = dino_loss(student, teacher, torch.tensor([9.0, 0.0]), 1.0, 0.01).item()
    assert centred == pytest.approx(-0.5 * math.log(0.75) - 0.5 * math.log(0.25), rel=1e-5)


def test_masked_patches_against_numpy_and_by_hand():
    rng = np.random.default_rng(3)
    predicted, patches = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    normalised = (patches - patches.mean(2, keepdims=True)) / np.sqrt(patches.var(2, ddof=1, keepdims=True) + 1e-6)
    got = masked_patch_loss(torch.tensor(predicted), torch.tensor(patches)).item()
    assert got == pytest.approx(np.mean((predicted - normalised) ** 2), rel=1e-5)
    patch = torch.tensor([[[0.2, 0.4]]])  # normalised ∓ 1 / sqrt 2
    assert masked_patch_loss(torch.zeros(1, 1, 2), patch).item() == pytest.approx(0.5, rel=1e-3)
    flat = torch.full((1, 1, 2), 0.7)  # no deviation: 0 / sqrt(1e-6)
    assert masked_patch_loss(torch.zeros(1, 1, 2), flat).item() == pytest.approx(0.0, abs=1e-6)
