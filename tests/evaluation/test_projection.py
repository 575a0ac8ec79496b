import math

import pytest
import torch

from fedssl.evaluation.projection import _conditional_probabilities, _gradient, principal_components, tsne


def clusters(count=120, distance=6.0):
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    centres = torch.randn(3, 16, generator=stream) * distance
    return centres[labels] + torch.randn(count, 16, generator=stream), labels


def test_principal_components_are_the_directions_of_most_variance():
    stream = torch.Generator().manual_seed(0)
    spread = torch.tensor([1.0, 5.0, 0.1, 2.0])
    features = torch.randn(4000, 4, generator=stream) * spread + 7
    points, shares = principal_components(features)
    assert points.std(dim=0).tolist() == pytest.approx([5.0, 2.0], rel=0.05)
    assert shares.tolist() == pytest.approx([25 / 30.01, 4 / 30.01], rel=0.05)
    centred = features - features.mean(dim=0)
    torch.testing.assert_close(points[:, 0], centred[:, 1], atol=0.3, rtol=0.1)  # the sign too


def test_tsne_keeps_neighbours_together_and_is_the_same_every_time():
    features, labels = clusters()
    points = tsne(features, steps=200)
    nearest = torch.cdist(points, points).fill_diagonal_(torch.inf).argmin(dim=1)
    assert (labels[nearest] == labels).all()
    torch.testing.assert_close(points, tsne(features, steps=200))
    torch.testing.assert_close(points.mean(dim=0), torch.zeros(2), atol=1e-4, rtol=0)


def test_every_point_has_as_many_effective_neighbours_as_asked():
    features, _ = clusters(60)
    probabilities = _conditional_probabilities(torch.cdist(features, features).square(), 12.0)
    entropy = -(probabilities * probabilities.clamp_min(1e-30).log()).sum(dim=1)
    torch.testing.assert_close(entropy, torch.full((60,), math.log(12.0)), atol=1e-3, rtol=0)
    assert probabilities.diagonal().abs().max() == 0


def test_gradient_is_that_of_the_divergence_between_the_two_distributions():
    stream = torch.Generator().manual_seed(1)
    points = torch.randn(7, 2, generator=stream, dtype=torch.double).float().requires_grad_()
    joint = torch.rand(7, 7, generator=stream).fill_diagonal_(0)
    joint = (joint + joint.T) / (joint + joint.T).sum()
    kernel = (1 + torch.cdist(points, points).square()).reciprocal() * (1 - torch.eye(7))
    q = kernel / kernel.sum()
    off = ~torch.eye(7, dtype=torch.bool)
    (joint[off] * (joint[off] / q[off]).log()).sum().backward()
    torch.testing.assert_close(_gradient(points.detach(), joint), points.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("features", [torch.ones(6, 3), torch.arange(5.0)[:, None], torch.randn(3, 2)])
def test_odd_features_still_give_finite_points(features):
    points = tsne(features, steps=20)
    assert points.shape == (len(features), 2)
    assert points.isfinite().all()
