"""The kNN monitor: weighted votes of the nearest training features, no training needed."""

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_TABLE = 100_000_000  # similarities in memory at once, 400 MB


@torch.no_grad()
def knn_predictions(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, *, k: int, temperature: float, num_classes: int
) -> Tensor:
    """Each of the k most similar training images (cosine s) votes for its class with weight exp(s / temperature)."""
    k = min(k, len(train_features))
    bank = F.normalize(train_features, dim=1).T  # d x N
    at_once = max(1, min(2000, len(test_features), LARGEST_TABLE // len(train_features)))
    table = bank.new_empty(at_once, bank.shape[1])  # hundreds of MB: made once
    predictions = []
    for chunk in torch.split(F.normalize(test_features, dim=1), at_once):
        similarity, nearest = torch.mm(chunk, bank, out=table[: len(chunk)]).topk(k, dim=1)  # M x k
        votes = torch.zeros(len(chunk), num_classes, dtype=similarity.dtype)
        votes.scatter_add_(1, train_labels[nearest], (similarity / temperature).exp())
        predictions.append(votes.argmax(dim=1))
    return torch.cat(predictions)
