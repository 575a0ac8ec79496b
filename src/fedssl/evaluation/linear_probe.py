"""Linear evaluation: one linear layer on frozen features, as in the paper."""

import torch
from torch import Tensor, nn

from fedssl.evaluation.features import Watch, unwatched
from fedssl.evaluation.training import Fitting, fit
from fedssl.seeding import global_stream

PAPER = Fitting(epochs=200, batch_size=512, lr=3e-3)
NAME = "linear-probe"


def linear_probe_predictions(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    num_classes: int,
    fitting: Fitting = PAPER,
    seed: int = 0,
    watch: Watch = unwatched,
) -> Tensor:
    """The classes that a linear layer names for the test features after the last epoch, not the best one seen."""
    with global_stream(seed, NAME, "init"):
        classifier = nn.Linear(train_features.shape[1], num_classes)
    fit(classifier, lambda chosen: train_features.index_select(0, chosen), train_labels, fitting, seed, NAME, watch)
    with torch.no_grad():
        predictions: Tensor = classifier(test_features).argmax(dim=1)
    return predictions
