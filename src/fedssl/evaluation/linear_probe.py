"""Linear evaluation: one linear layer on frozen features, as in the paper."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.seeding import global_stream, torch_stream


def linear_probe_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    epochs: int = 200,
    batch_size: int = 512,
    lr: float = 3e-3,
    seed: int = 0,
) -> float:
    """Adam, 200 epochs, batch 512; accuracy over images after the last epoch, not the best one seen."""
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    with global_stream(seed, "linear-probe", "init"):
        classifier = nn.Linear(train_features.shape[1], num_classes)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=lr, fused=True)
    stream = torch_stream(seed, "linear-probe", "order")
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(train_features), generator=stream), batch_size):
            loss = F.cross_entropy(classifier(train_features.index_select(0, chosen)), train_labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        return float((classifier(test_features).argmax(dim=1) == test_labels).double().mean())
