"""From settings to the parts of a run: data, partition, networks, client side and server side, checked together."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedssl.config import Choice, Config, Init, check_round, choice, make_aggregator
from fedssl.data.augmentations import RECIPES
from fedssl.data.datasets import DATASETS, Dataset
from fedssl.data.fetch import Progress, silent
from fedssl.data.images import Chosen, Pixels
from fedssl.data.labelled import choose_labelled
from fedssl.data.partition import Partition, deal_out
from fedssl.data.public import choose_public
from fedssl.errors import FedsslError
from fedssl.evaluation.bench import LabelledData
from fedssl.evaluation.monitor import Monitor, NoMonitor, SpreadMonitor
from fedssl.evaluation.protocols import KNN, Linear
from fedssl.federation.client import Client
from fedssl.federation.model_aggregation import Aggregator
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.federation.privacy import PRIVACY, ClientDP, PrivateAverage, run_key
from fedssl.federation.rounds import Server
from fedssl.federation.wire import Wire
from fedssl.methods import METHODS
from fedssl.methods.base import SiameseMethod
from fedssl.networks.backbones import feature_size, find_backbone
from fedssl.networks.heads import HeadSizes
from fedssl.networks.weight_files import file_sha256, find_weight_file, load_backbone
from fedssl.reports.encoder_file import read_encoder
from fedssl.seeding import global_stream


@dataclass(frozen=True)
class Parts:
    """All that a run is made of, built and checked before anything is written."""

    dataset: Dataset
    partition: Partition
    client: Client
    server: Server
    monitor: Monitor | SpreadMonitor | NoMonitor
    device: torch.device
    remarks: list[str]
    warnings: list[str]
    privacy: ClientDP | None = None
    public_source: str = ""  # in words, where a method's public images come from


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FedsslError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def build_method(config: Config, channels: int, image_size: tuple[int, int]) -> SiameseMethod:
    """The networks with their first weights, which follow from the seed and, if init.encoder names one, a file."""
    network = config.network
    with global_stream(config.run.seed, "initial-weights"):
        backbone = find_backbone(network.name, config.allow_code)(channels, **(network.model_extra or {}))
        size = feature_size(backbone, channels, image_size)
        if config.init.encoder:
            _start_from(config.init, backbone)  # before the method copies the backbone: the target starts the same
        heads = HeadSizes(network.head_hidden, network.head_out)
        return METHODS[config.method.name].build(backbone, size, heads, **config.method.settings)


def _start_from(init: Init, backbone: nn.Module) -> None:
    try:
        _check_file(init)
        load_backbone(backbone, read_encoder(init.encoder), init.skip, "init.skip")
    except FedsslError as error:
        raise type(error)(f"init.encoder: {error}") from None


def _check_file(init: Init) -> str:
    """The checksum of the file, which must be the one that the settings name, if they do."""
    path = find_weight_file(init.encoder)
    found = file_sha256(path)
    if init.sha256 not in ("", found):
        raise FedsslError(
            f"{path}: not the file that the run was begun with (SHA-256 {found[:12]}… instead of {init.sha256[:12]}…): "
            "put that one back, or start another run with --fresh and init.sha256 left out"
        )
    return found


def pinned(config: Config) -> Config:
    """The settings with the checksum of the file that weights start from, so that no other file can take its place."""
    if not config.init.encoder:
        return config
    try:
        found = _check_file(config.init)
    except FedsslError as error:
        raise FedsslError(f"init.encoder: {error}") from None
    return replace(config, init=config.init.model_copy(update={"sha256": found}))


def build_networks(
    config: Config, dataset: Dataset, partition: Partition, device: torch.device, progress: Progress = silent
) -> tuple[SiameseMethod, str]:
    """The networks where they are trained, and in words where a method's public images come from."""
    method = build_method(config, dataset.train.channels, dataset.train.image_size)
    method.public, public_source = choose_public_images(config, dataset, partition, progress)
    method.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method, public_source


def build(config: Config, progress: Progress = silent) -> Parts:
    """Turns settings into parts, and refuses what cannot work."""
    device = choose_device(config.run.device)
    config.local_training.check(device)
    dataset = build_dataset(config.data, progress)
    partition = build_partition(config, dataset)
    remarks = [*dataset.remarks, *check_partition(config, dataset, partition)]
    method, public_source = build_networks(config, dataset, partition, device, progress)
    client = build_client(config, method, _images_of(dataset, partition))
    server = build_server(config, client, len(partition.clients))
    monitor = build_monitor(config, dataset)
    if method.public is not None:
        remarks.append(f"{len(method.public)} public images ({public_source}) are at no client; every site sees them")
    warnings, privacy = build_warnings(config), client.privacy
    return Parts(dataset, partition, client, server, monitor, device, remarks, warnings, privacy, public_source)


def build_client(config: Config, method: SiameseMethod, images_of: Callable[[int], Pixels]) -> Client:
    return Client(
        method,
        UPDATE_RULES[config.update_rule.name](**config.update_rule.settings),
        RECIPES[config.augmentation.name](**config.augmentation.settings),
        config.local_training,
        images_of,
        config.run.rounds,
        config.run.seed,
        config.uploads.upload,
        config.uploads.batchnorm,
        config.run.profile,
        Wire(config.uploads.wire_dtype),
        PRIVACY[config.privacy.name](**config.privacy.settings),
        config.failures.damaged_state == "start-over",
    )


def build_server(config: Config, client: Client, num_clients: int) -> Server:
    return Server(
        num_clients,
        config.client_sampling.clients_per_round,
        config.run.seed,
        client.rule,
        _aggregator(config, client.privacy, num_clients),
        client.method.pool,
        config.failures.min_clients,
        config.failures.retries,
        client.wire,
        client.method.payload_problem,
        client.needed_numbers(),
    )


def _aggregator(config: Config, privacy: ClientDP | None, num_clients: int) -> Aggregator:
    if privacy is None:
        return make_aggregator(config.aggregation)
    asked = config.client_sampling.clients_per_round or num_clients
    return PrivateAverage(privacy=privacy, asked=asked, key=run_key(config.run.seed))


def build_warnings(config: Config) -> list[str]:
    leaves = METHODS[config.method.name].leaves
    if not leaves or not UPDATE_RULES[config.update_rule.name].shares:
        return []
    return [f"FEATURES LEAVE THE CLIENTS: with {config.method.name} every client also sends {leaves}"]


def build_monitor(config: Config, dataset: Dataset) -> Monitor | SpreadMonitor | NoMonitor:
    settings = config.evaluation
    if dataset.labelled is None:
        return SpreadMonitor(dataset.train.pixels, settings.features) if len(dataset.train) else NoMonitor()
    return Monitor(
        LabelledData(dataset.name, *dataset.labelled),
        KNN(k=settings.k, temperature=settings.temperature, features=settings.features),
        Linear(epochs=settings.linear_epochs) if settings.linear_probe else None,
        config.run.seed,
    )


def build_dataset(data: Choice, progress: Progress = silent) -> Dataset:
    loader = DATASETS[data.name]
    return loader(progress, **data.settings_for(loader))


def build_partition(config: Config, dataset: Dataset) -> Partition:
    """Labelled and public images are set aside first; the partition deals out the rest."""
    labels = None if dataset.train.labels is None else dataset.train.labels.numpy()
    count, seed = len(dataset.train), config.run.seed
    labelled = choose_labelled(labels, count, seed, **config.data.settings_for(choose_labelled))
    wanted = 0 if config.method.settings.get("public_data") else config.method.settings.get("public_images", 0)
    if wanted and dataset.owners is not None:
        raise FedsslError(
            "method.public_data: these images belong to clients, none of them may be public: name another dataset, "
            f"one of {', '.join(DATASETS)}"
        )
    public = choose_public(count, seed, wanted, labelled)
    return deal_out(
        config.partition.name, config.partition.settings, labels, count, seed, labelled, dataset.owners, public
    )


def choose_public_images(
    config: Config, dataset: Dataset, partition: Partition, progress: Progress = silent
) -> tuple[torch.Tensor | None, str]:
    """The images that a method wants everybody to see, without labels, and in words where they come from."""
    count, name = config.method.settings.get("public_images", 0), config.method.settings.get("public_data", "")
    if not count:
        return None, ""
    if not name and not len(dataset.train):
        raise FedsslError("method.public_data: the images stay at their sites: name a dataset that every site has")
    if not name:
        return dataset.train.unlabelled().select(partition.public).pixels, f"of {dataset.name}"
    if name not in DATASETS:
        raise FedsslError(f"method.public_data: there is no {name!r}; known: {', '.join(DATASETS)}")
    other = build_dataset(choice("data", {"name": name}), progress)
    if (other.train.channels, other.train.image_size) != (dataset.train.channels, dataset.train.image_size):
        raise FedsslError(
            f"method.public_data: images of {name} are {other.train.channels} x {other.train.image_size}, those of "
            f"{dataset.name} {dataset.train.channels} x {dataset.train.image_size}: take a dataset of the same size"
        )
    chosen = choose_public(len(other.train), config.run.seed, count, np.empty(0, np.int64))
    return other.train.unlabelled().select(chosen).pixels, f"of {name}, {other.source}"


def _images_of(dataset: Dataset, partition: Partition) -> Callable[[int], Chosen]:
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
