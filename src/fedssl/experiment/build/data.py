"""The data of a run: its images, who holds which of them, and which are set aside."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.data import DATASETS
from fedssl.data.dataset import Chosen, Dataset
from fedssl.data.holdout import choose_labelled, choose_public
from fedssl.data.partition import Partition, deal_out
from fedssl.experiment.config.resolve import check_round, choice
from fedssl.experiment.config.schema import Choice, Config
from fedssl.methods.base import PublicImages


def build_dataset(data: Choice, progress: Progress = silent) -> Dataset:
    made: Dataset = data.build(progress)
    return made


def build_partition(config: Config, dataset: Dataset) -> Partition:
    """Labelled and public images are set aside first; the partition deals out the rest."""
    labels = None if dataset.train.labels is None else dataset.train.labels.numpy()
    count, seed = len(dataset.train), config.run.seed
    labelled = choose_labelled(labels, count, seed, **config.data.settings_for(choose_labelled))
    request = public_images(config)
    wanted = 0 if request.data else request.count
    if wanted and dataset.owners is not None:
        raise FedsslError(
            "method.public_data: these images belong to clients, none of them may be public: name another dataset, "
            f"one of {', '.join(DATASETS)}"
        )
    public = choose_public(count, seed, wanted, labelled)
    deal = partial(config.partition.factory, **config.partition.settings)
    return deal_out(deal, labels, count, seed, labelled, dataset.owners, public)


def public_images(config: Config) -> PublicImages:
    """What the method wants of images that everybody may see."""
    request: PublicImages = config.method.factory.public_images(config.method.settings)
    return request


def choose_public_images(
    config: Config, dataset: Dataset, partition: Partition, progress: Progress = silent
) -> tuple[torch.Tensor | None, str]:
    """The images that a method wants everybody to see, without labels, and in words where they come from."""
    request = public_images(config)
    name = request.data  # allowed when the settings were resolved
    if not request.count:
        return None, ""
    if not name and not len(dataset.train):
        raise FedsslError("method.public_data: the images stay at their sites: name a dataset that every site has")
    if not name:
        return dataset.train.unlabelled().select(partition.public).pixels, f"of {dataset.name}"
    other = build_dataset(choice("data", {"name": name}, config.allow_code), progress)
    if (other.train.channels, other.train.image_size) != (dataset.train.channels, dataset.train.image_size):
        raise FedsslError(
            f"method.public_data: images of {name} are {other.train.channels} x {other.train.image_size}, those of "
            f"{dataset.name} {dataset.train.channels} x {dataset.train.image_size}: take a dataset of the same size"
        )
    chosen = choose_public(len(other.train), config.run.seed, request.count, np.empty(0, np.int64))
    return other.train.unlabelled().select(chosen).pixels, f"of {name}, {other.source}"


def images_of_clients(dataset: Dataset, partition: Partition) -> Callable[[int], Chosen]:
    images = dataset.train.unlabelled()
    return lambda client_id: images.chosen(partition.clients[client_id])


def left_out(dataset: Dataset, partition: Partition) -> list[str]:
    """Clients that the data name and the partition has not: those with a single image."""
    named = dataset.owners.names if dataset.owners and partition.names else ()
    return [name for name in named if name not in partition.names]


def _lost(dataset: Dataset, client: str) -> str:
    lost = [one for one in dataset.refused if one.client == client]
    return f"; {len(lost)} of its files were refused, first {lost[0].file}: {lost[0].reason}" if lost else ""


def check_partition(config: Config, dataset: Dataset, partition: Partition) -> list[str]:
    """Refuses a client that cannot be trained; remarks on one that has less than a batch, and on what is left out."""
    alone, batch_size = left_out(dataset, partition), config.local_training.batch_size
    remarks = [f"{name} is left out: it has 1 image, and at least 2 are needed{_lost(dataset, name)}" for name in alone]
    for client_id, size in enumerate(partition.sizes()):
        title = partition.title(client_id)
        if size < 2:
            why = _lost(dataset, partition.names[client_id]) if partition.names else ""
            raise FedsslError(f"{title} has {size} images: at least 2 are needed (partition, data){why}")
        if size < batch_size:
            remarks.append(f"{title} has {size} images, fewer than a batch of {batch_size}: it trains on all at once")
    per_round, count = config.client_sampling.clients_per_round, len(partition.clients)
    if per_round is not None and per_round > count:
        raise FedsslError(f"client_sampling.clients_per_round: {per_round} is more than the {count} clients there are")
    check_round(config, per_round or count)
    if len(partition.labelled):
        remarks.append(f"{len(partition.labelled)} labelled images are held out of pre-training, for evaluation")
    if partition.unused > len(alone):
        remarks.append(f"{partition.unused - len(alone)} images belong to no client (they cannot be shared out evenly)")
    if dataset.labelled is None:
        remarks.append(
            "no accuracy can be given without labelled test images (data.eval_test): the loss and the spread of the "
            "features are watched"
        )
    return remarks
