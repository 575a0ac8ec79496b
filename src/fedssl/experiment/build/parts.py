"""From settings to the parts of a run: data, partition, networks, client side and server side, checked together."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fedssl.core.devices import choose_device
from fedssl.core.progress import Progress, silent
from fedssl.data.dataset import Dataset, Pixels
from fedssl.data.partition import Partition
from fedssl.evaluation.context import LabelledData
from fedssl.evaluation.monitor import Monitor, NoMonitor, SpreadMonitor
from fedssl.evaluation.protocols import KNN, Linear
from fedssl.experiment.build.data import build_dataset, build_partition, check_partition, images_of_clients
from fedssl.experiment.build.networks import build_networks
from fedssl.experiment.build.site_labels import build_examine, labels_of_clients
from fedssl.experiment.config.schema import Config
from fedssl.federation.client import Client, Examine, MakeTerms
from fedssl.federation.model_aggregation.base import Aggregator
from fedssl.federation.privacy.mechanism import ClientDP, PrivateAverage, run_key
from fedssl.federation.rounds import Server
from fedssl.federation.wire import Wire
from fedssl.methods.base import SiameseMethod
from fedssl.networks.blocks import blocks_of, first_blocks
from fedssl.networks.libraries import origin_of
from fedssl.networks.vit import VisionTransformer

ImagesOf = Callable[[int], Pixels]
# What clients of a secure sum must have in common, beside how long and at what rate they train.
SAME_EVERYWHERE = ("method", "network", "augmentation", "update_rule", "aggregation", "privacy")


@dataclass(frozen=True, kw_only=True)
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
    public_source: str = ""  # in words, where a method's public images come from


def build(config: Config, progress: Progress = silent) -> Parts:
    """Turns settings into parts, and refuses what cannot work."""
    config.local_training.check(choose_device(config.run.device))
    dataset = build_dataset(config.data, progress)
    partition = build_partition(config, dataset)
    remarks = [*dataset.remarks, *check_partition(config, dataset, partition)]
    examine = build_examine(config, labels_of_clients(dataset, partition))
    parts = assemble(config, dataset, partition, images_of_clients(dataset, partition), progress, remarks, examine)
    origin = origin_of(parts.client.method.online_encoder.backbone)
    if origin and config.init.encoder:
        (height, width), size = dataset.train.image_size, origin.published_input["size"] or ["?"]
        parts.remarks.append(
            f"weights that {origin.library} publishes for {origin.model} saw images of {size[0]} pixels, "
            f"{origin.published_input['interpolation']}; these are {height} x {width}, "
            f"{config.data.settings.get('resampling', 'not resampled')}"
        )
    public = parts.client.method.public
    if public is not None:
        parts.remarks.append(
            f"{len(public)} public images ({parts.public_source}) are at no client; every site sees them"
        )
    return parts


def assemble(
    config: Config,
    dataset: Dataset,
    partition: Partition,
    images_of: ImagesOf,
    progress: Progress,
    remarks: list[str],
    examine: Examine | None = None,
) -> Parts:
    """All that follows from the images and from who has them."""
    device = choose_device(config.run.device)
    method, public_source = build_networks(config, dataset, partition, device, progress)
    sizes = partition.sizes()
    client = build_client(config, method, images_of, len(sizes), max(sizes, default=0), examine)
    return Parts(
        dataset=dataset,
        partition=partition,
        client=client,
        server=build_server(config, client, len(partition.clients)),
        monitor=build_monitor(config, dataset),
        device=device,
        remarks=[*remarks, *_frozen(config, method), *_edges(config, method, dataset.train.image_size)],
        warnings=build_warnings(config),
        public_source=public_source,
    )


def _frozen(config: Config, method: SiameseMethod) -> list[str]:
    """In words, what of the backbone is not trained."""
    backbone, count = method.online_encoder.backbone, config.local_training.freeze
    if not count:
        return []
    sizes = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    blocks = first_blocks(backbone, count)
    share = sum(sizes[name] for block in blocks for name in block.parameters) / sum(sizes.values())
    names = ", ".join(block.name for block in blocks)
    return [f"frozen: {names} ({count} of {len(blocks_of(backbone))} blocks, {share:.0%} of the backbone's parameters)"]


def _edges(config: Config, method: SiameseMethod, image_size: tuple[int, int]) -> list[str]:
    """In words, which images and views have pixels beyond the last whole patch."""
    backbone, recipe = method.online_encoder.backbone, config.augmentation.build()
    if not isinstance(backbone, VisionTransformer):
        return []
    patch, sizes = backbone.patch_size, [image_size]
    sizes += [recipe.output(image_size, group.part) for group in method.view_groups]
    cut = {size: tuple(patch * count for count in backbone.grid(size)) for size in sizes}
    return [
        f"{config.network.name} sees {used[0]} x {used[1]} of the {size[0]} x {size[1]} pixels of "
        f"{'images' if size == image_size else 'views'}: its patches have {patch}; give sides that are multiples"
        for size, used in cut.items()
        if used != size
    ]


def build_client(
    config: Config,
    method: SiameseMethod,
    images_of: ImagesOf,
    num_clients: int,
    most_images: int = 0,
    examine: Examine | None = None,
) -> Client:
    """`most_images`: of the largest client, where that is known; `examine`: what it does with labels, if it has any."""
    privacy = config.privacy.build()
    return Client(
        method=method,
        rule=config.update_rule.build(),
        recipe=config.augmentation.build(),
        training=config.local_training,
        images_of=images_of,
        rounds=config.run.rounds,
        seed=config.run.seed,
        num_clients=num_clients,
        upload=config.uploads.upload,
        batchnorm=config.uploads.batchnorm,
        profile=config.run.profile,
        wire=Wire(config.uploads.wire_dtype),
        privacy=privacy,
        start_over=config.failures.damaged_state == "start-over",
        secure=_secure(config, privacy, num_clients, most_images) if config.uploads.secure else None,
        examine=examine,
    )


def _secure(config: Config, privacy: ClientDP | None, num_clients: int, most_images: int) -> MakeTerms:
    from fedssl.federation.secure.terms import make_terms

    uploads, clients = config.uploads, config.client_sampling.clients_per_round or num_clients
    raw = config.as_raw()
    return partial(
        make_terms,
        settings=json.dumps({table: raw[table] for table in SAME_EVERYWHERE}, sort_keys=True),
        clients=clients,
        threshold=uploads.secure_threshold,
        most_examples=uploads.secure_max_examples or most_images or None,
        limit=uploads.secure_limit,
        statistics_limit=uploads.secure_statistics_limit,
        clip_norm=privacy.clip_norm if privacy else None,
        deviation=privacy.deviation(clients) if privacy else 0.0,
    )


def build_server(config: Config, client: Client, num_clients: int) -> Server:
    return Server(
        num_clients=num_clients,
        clients_per_round=config.client_sampling.clients_per_round,
        seed=config.run.seed,
        rule=client.rule,
        aggregate=_aggregator(config, client.privacy, num_clients),
        pool=client.method.pool,
        min_clients=config.failures.min_clients,
        retries=config.failures.retries,
        wire=client.wire,
        payload_problem=client.method.payload_problem,
        needed=client.needed_numbers(),
        frozen=client.frozen,
    )


def _aggregator(config: Config, privacy: ClientDP | None, num_clients: int) -> Aggregator:
    if privacy is None or config.uploads.secure:
        made: Aggregator = config.aggregation.build()
        return made
    sampled = config.client_sampling.clients_per_round or num_clients
    return PrivateAverage(privacy=privacy, sampled=sampled, key=run_key(config.run.seed))


def build_warnings(config: Config) -> list[str]:
    leaves = config.method.factory.leaves
    if not leaves or not config.update_rule.factory.shares:
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
