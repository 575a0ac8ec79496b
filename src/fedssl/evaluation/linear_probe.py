"""Linear evaluation: one linear layer on frozen features, as in the paper."""

import torch
from torch import Tensor, nn

from fedssl.core.eager import eager
from fedssl.core.progress import Progress, silent
from fedssl.core.seeding import global_stream
from fedssl.evaluation.fitting import Fitting

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
    progress: Progress = silent,
) -> Tensor:
    """The classes that a linear layer names for the test features after the last epoch, not the best one seen."""
    with global_stream(seed, NAME, "init"):
        classifier = nn.Linear(train_features.shape[1], num_classes)
    fit_linear(classifier, train_features, train_labels, fitting, seed, progress)
    with torch.no_grad():
        predictions: Tensor = classifier(test_features).argmax(dim=1)
    return predictions


@torch.no_grad()
def fit_linear(
    classifier: nn.Linear, features: Tensor, labels: Tensor, fitting: Fitting, seed: int, progress: Progress = silent
) -> None:
    """Cross-entropy and Adam in place; the gradient is written out, for autograd is slow on so small a model."""
    weight, bias = classifier.weight, classifier.bias
    optimizer = eager(torch.optim.Adam)(classifier.parameters(), lr=fitting.lr, fused=True)
    buffer = features.new_empty(min(fitting.batch_size, len(features)), features.shape[1])
    columns = torch.arange(len(buffer))
    for epoch, batches in fitting.batches(len(labels), seed, NAME):
        for chosen in batches:
            count = len(chosen)
            x = torch.index_select(features, 0, chosen, out=buffer[:count])  # B x d
            error = torch.addmm(bias[:, None], weight, x.T).softmax(dim=0)  # C x B: probabilities
            error[labels[chosen], columns[:count]] -= 1
            error /= count  # the gradient of the mean loss by the logits
            weight.grad, bias.grad = error @ x, error.sum(dim=1)
            optimizer.step()
        progress(NAME, epoch, fitting.epochs)
