"""The labelled images with which each client looks at the global encoder; nothing of them reaches pre-training."""

from collections.abc import Callable

import numpy as np
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import Dataset, Images
from fedssl.data.holdout import choose_test_part
from fedssl.data.partition import Partition
from fedssl.evaluation.context import LabelledData
from fedssl.evaluation.monitor import SiteMonitor
from fedssl.evaluation.protocols import KNN, Linear
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.config.resolve import choice
from fedssl.experiment.config.schema import Config, Raw
from fedssl.federation.client import Examine
from fedssl.federation.messages import ClientError
from fedssl.federation.site_evaluation import Counts
from fedssl.networks.heads import Encoder

LabelsOf = Callable[[int], LabelledData | None]
TEST_SHARE = 0.2  # of a client's own labelled images, where it has no others to test with


def build_examine(config: Config, labels_of: LabelsOf) -> Examine | None:
    """How a client counts; None unless settings ask for it. Labels are read when they are asked for, not before."""
    settings = config.evaluation
    if not settings.at_sites:
        return None
    knn = KNN(k=settings.k, temperature=settings.temperature, features=settings.features)
    monitor = SiteMonitor(knn, Linear(epochs=settings.linear_epochs), config.run.seed)

    def examine(client_id: int, encoder: Encoder) -> Counts:
        data = labels_of(client_id)
        if data is None or not len(data.test) or not len(data.train):
            raise ClientError("refused", "accuracy at the sites: there are no labelled images here")
        return Counts(len(data.test), monitor.correct(encoder, data), client_id)

    return examine


def labels_of_clients(dataset: Dataset, partition: Partition) -> LabelsOf:
    """A client learns from its own labelled images and is tested on its own test images.

    Those are the ones that the data say are its own, else those of the classes that it holds. Where there are none at
    all, a fifth of its own images, which it trains on as well, without labels.
    """

    def labels_of(client_id: int) -> LabelledData | None:
        own = dataset.train.select(partition.clients[client_id])
        if own.labels is None or not len(own):
            return None
        if dataset.test is None or dataset.test.labels is None:
            return _split(own)
        if dataset.test_owners is not None and partition.names:
            number = dataset.test_owners.names.index(partition.names[client_id])
            chosen = np.flatnonzero(dataset.test_owners.clients == number)
        else:
            chosen = torch.isin(dataset.test.labels, torch.unique(own.labels)).nonzero().flatten().numpy()
        return LabelledData("a client's own images", own, dataset.test.select(chosen))

    return labels_of


def _split(own: Images) -> LabelledData:
    assert own.labels is not None
    test = choose_test_part(own.labels.numpy(), TEST_SHARE)
    rest = np.setdiff1d(np.arange(len(own)), test)
    return LabelledData("a client's own images", own.select(rest), own.select(test))


def labels_of_site(decoding: Raw, data: str, eval_train: str = "", eval_test: str = "") -> LabelsOf:
    """A site's own places, decoded as the images that it trains on; the images themselves may name their classes."""
    if eval_train and eval_test:
        place: Raw = {"name": "sites", "eval_train": eval_train, "eval_test": eval_test}
    elif eval_test:
        place = {"name": "folder", "path": data, "eval_test": eval_test}
    else:
        place = {"name": "folder", "path": eval_train or data, "test_fraction": TEST_SHARE}

    def labels_of(client_id: int) -> LabelledData | None:  # noqa: ARG001 - all that is here is this client's
        try:
            labelled = build_dataset(choice("data", place | decoding)).labelled
        except FedsslError as error:
            raise ClientError("refused", f"accuracy at the sites: {error}") from None
        return LabelledData("this site's images", *labelled) if labelled else None

    return labels_of
