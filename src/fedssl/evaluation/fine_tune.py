"""Semi-supervised fine-tuning on few labelled images, and the supervised baseline."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedssl.core.progress import Progress, silent
from fedssl.core.seeding import global_stream
from fedssl.data.dataset import Images, Indices
from fedssl.evaluation.features import compute_features, device_of, mode
from fedssl.evaluation.fitting import Fitting, fit
from fedssl.networks.heads import Encoder, HeadSizes, mlp
from fedssl.networks.inputs import as_input

NAME = "fine-tuning"
SUPERVISED = "supervised baseline"


def fine_tuned(
    backbone: nn.Module,
    images: Images,
    head: nn.Module,
    fitting: Fitting,
    seed: int,
    progress: Progress = silent,
    numbers: Indices | None = None,
) -> nn.Sequential:
    """A copy of the backbone with this head on it, all of it trained (`paper`); the backbone itself is untouched.

    It learns from the images of these numbers, if any are given.
    """
    model = nn.Sequential(deepcopy(backbone), head).to(device_of(backbone))
    _train(model, images, numbers, fitting, seed, NAME, progress)
    return model


def new_head(feature_size: int, hidden: int, num_classes: int, seed: int) -> nn.Sequential:
    """Linear → BatchNorm → ReLU → Linear with initial weights by the seed."""
    with global_stream(seed, NAME, "init"):
        return mlp(feature_size, HeadSizes(hidden, num_classes))


def class_predictions(model: nn.Module, pixels: Tensor) -> Tensor:
    """The classes that a network with a classifier on top names for uint8 images."""
    return compute_features(model, pixels).argmax(dim=1)


def best_head_predictions(
    head: nn.Module,
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    fitting: Fitting,
    seed: int,
    progress: Progress = silent,
) -> tuple[Tensor, int]:
    """The head alone is trained, and the epoch that is best on the test images counts (`authors`): (classes, epoch)."""
    best: list[tuple[int, int, Tensor]] = []  # correct, epoch, predictions
    epoch = 0

    @torch.no_grad()
    def look() -> None:
        nonlocal epoch
        epoch += 1
        with mode(head, training=False):
            predictions = head(test_features).argmax(dim=1)
        correct = int((predictions == test_labels).sum())
        if not best or correct > best[0][0]:
            best[:] = [(correct, epoch, predictions)]

    inputs = train_features.index_select
    fit(head, lambda chosen: inputs(0, chosen), train_labels, fitting, seed, NAME, progress, look)
    return best[0][2], best[0][1]


def train_supervised(
    encoder: Encoder,
    images: Images,
    fitting: Fitting,
    seed: int,
    progress: Progress = silent,
    numbers: Indices | None = None,
) -> None:
    """Trains the backbone in place with labels and a linear layer on top, which is thrown away; no augmentation."""
    size = compute_features(encoder.backbone, images.pixels[:2]).shape[1]
    with global_stream(seed, SUPERVISED, "init"):
        classifier = nn.Linear(size, images.num_classes)
    model = nn.Sequential(encoder.backbone, classifier).to(device_of(encoder))
    _train(model, images, numbers, fitting, seed, SUPERVISED, progress)


def _train(
    model: nn.Sequential,
    images: Images,
    numbers: Indices | None,
    fitting: Fitting,
    seed: int,
    name: str,
    progress: Progress,
) -> None:
    assert images.labels is not None
    device = device_of(model)
    # Batch by batch: the set may be a memory map larger than the memory.
    pixels = images.chosen(torch.arange(len(images)) if numbers is None else numbers)
    model.requires_grad_(True)
    fit(
        model,
        lambda chosen: as_input(pixels.index_select(0, chosen), device),
        images.labels[pixels.numbers],
        fitting,
        seed,
        name,
        progress,
    )
