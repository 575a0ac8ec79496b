"""Features on a sheet of paper: two dimensions by principal components, or by t-SNE."""

import torch
from torch import Tensor

PERPLEXITY = 30.0
BISECTIONS = 24  # of the width about a point: float32 has no more digits


@torch.no_grad()
def principal_components(features: Tensor, dimensions: int = 2) -> tuple[Tensor, Tensor]:
    """N x dimensions coordinates, and the share of the variance that each of them carries."""
    centred = (features - features.mean(dim=0)).double()
    left, singular, axes = torch.linalg.svd(centred, full_matrices=False)
    dimensions = min(dimensions, len(singular))
    # The sign of a component is arbitrary; fixed, so that the same features always give the same picture.
    largest = axes[:dimensions].abs().argmax(dim=1, keepdim=True)
    sign = axes[:dimensions].gather(1, largest).sign().squeeze(1)
    shares = singular.square() / singular.square().sum().clamp_min(1e-12)
    return (left[:, :dimensions] * singular[:dimensions] * sign).float(), shares[:dimensions].float()


@torch.no_grad()
def tsne(features: Tensor, steps: int = 500, perplexity: float = PERPLEXITY) -> Tensor:
    """N x 2 coordinates in which neighbours stay neighbours (van der Maaten & Hinton, 2008); exact, no random start.

    Early exaggeration and the learning rate as in scikit-learn; it begins with the principal components.
    """
    count = len(features)
    perplexity = min(perplexity, max((count - 1) / 3, 1.0))
    reduced, _ = principal_components(features, 50)
    joint = _joint_probabilities(reduced, perplexity)
    start, _ = principal_components(reduced, 2)
    if start.shape[1] < 2:  # one feature only
        start = torch.cat([start, torch.zeros_like(start)], dim=1)[:, :2]
    points = start / start.std(dim=0).clamp_min(1e-12)[0] * 1e-4
    rate, exaggerated = max(count / 48, 50.0), steps // 2
    velocity, gains = torch.zeros_like(points), torch.ones_like(points)
    for step in range(steps):
        gradient = _gradient(points, joint, 12.0 if step < exaggerated else 1.0)
        opposed = gradient.sign() != velocity.sign()
        gains = torch.where(opposed, gains + 0.2, gains * 0.8).clamp_(min=0.01)
        velocity = (0.5 if step < exaggerated else 0.8) * velocity - rate * gains * gradient
        points = points + velocity
    return points - points.mean(dim=0)


def _gradient(points: Tensor, joint: Tensor, exaggeration: float = 1.0) -> Tensor:
    """4 Σ_j (p_ij − q_ij) (y_i − y_j) k_ij with k = 1 / (1 + ‖y_i − y_j‖²) and q = k / Σ k, p exaggerated.

    In few passes over the N x N matrices: p k and k² are summed apart, and Σ_j f_ij (y_i − y_j) is one product.
    """
    squares, ones = points.square().sum(dim=1, keepdim=True), torch.ones(len(points), 1)
    distances = torch.cat([-2 * points, squares, ones], dim=1) @ torch.cat([points, ones, squares], dim=1).T
    kernel = distances.clamp_min_(0).add_(1).reciprocal_().fill_diagonal_(0)
    total = kernel.sum()
    padded = torch.cat([points, ones], dim=1)
    attraction = (joint * kernel) @ padded
    sums = exaggeration * attraction - kernel.square_() @ padded / total
    return 4 * (sums[:, 2:] * points - sums[:, :2])


def _joint_probabilities(features: Tensor, perplexity: float) -> Tensor:
    distances = torch.cdist(features, features).square()
    conditional = _conditional_probabilities(distances, perplexity)
    return ((conditional + conditional.T) / (2 * len(features))).clamp_min(1e-12)


def _conditional_probabilities(distances: Tensor, perplexity: float) -> Tensor:
    """p_{j|i}: a Gaussian about each point, as wide as it takes to have `perplexity` effective neighbours."""
    target = torch.log(torch.tensor(perplexity))
    distances = distances / distances.mean().clamp_min(1e-12)
    low, high = torch.zeros(len(distances)), torch.full((len(distances),), torch.inf)
    precision = torch.ones(len(distances))
    for _ in range(BISECTIONS):
        logits = (-precision[:, None] * distances).fill_diagonal_(-torch.inf)
        probabilities = logits.softmax(dim=1)
        entropy = -(probabilities * probabilities.clamp_min(1e-30).log()).sum(dim=1)
        wide = entropy > target  # too many neighbours: raise the precision
        low, high = torch.where(wide, precision, low), torch.where(wide, high, precision)
        precision = torch.where(high.isinf(), precision * 2, (low + high) / 2)
    return probabilities
