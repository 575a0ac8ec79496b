"""The networks of a run with their first weights, at random or from a file."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.core.seeding import global_stream
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.dataset import Dataset
from fedssl.data.own.decoding import RESAMPLING
from fedssl.data.partition import Partition
from fedssl.experiment.build.data import choose_public_images
from fedssl.experiment.config.schema import Config, Init, Raw
from fedssl.experiment.records.encoder_facts import input_of
from fedssl.experiment.records.encoder_file import read_encoder
from fedssl.methods.base import SiameseMethod
from fedssl.networks.backbones import BACKBONES, Input, feature_size, find_backbone
from fedssl.networks.heads import HeadSizes
from fedssl.networks.libraries import is_published, published_input, published_weights
from fedssl.networks.weight_files import WeightFile, file_sha256, find_weight_file, load_backbone


def build_method(config: Config, channels: int, image_size: tuple[int, int]) -> SiameseMethod:
    """The networks with their first weights, which follow from the seed and, if init.encoder names one, a file."""
    network = config.network
    if config.init.required and not config.init.encoder:
        raise FedsslError(
            "init.encoder: must be given, for this run continues from weights: --set init.encoder=FILE (a .safetensors "
            "file, a run folder or an export), and network.name as the file has it"
        )
    with global_stream(config.run.seed, "initial-weights"):
        make = find_backbone(network.name, config.allow_code, image_size=image_size)
        backbone = make(channels, **(network.model_extra or {}))
        size = feature_size(backbone, channels, image_size)
        if config.init.encoder:
            _start_from(config.init, backbone)  # before the method copies the backbone: the target starts the same
        heads = HeadSizes(network.head_hidden, network.head_out)
        made: SiameseMethod = config.method.build(backbone, size, heads)
        return made


def _start_from(init: Init, backbone: nn.Module) -> None:
    try:
        _checksum(init)
        file = (_published if is_published(init.encoder) else read_encoder)(init.encoder)
        load_backbone(backbone, file, init.skip, "init.skip")
    except FedsslError as error:
        raise type(error)(f"init.encoder: {error}") from None


def input_of_start(config: Config) -> Raw:
    """As settings by path: the images of the weights to start from, as far as their file or their library says."""
    start, network = config.init.encoder, config.network.name
    file = read_encoder(start) if start and not is_published(start) else None
    known: Raw = {}
    if start and not (file and file.about):  # not fedssl's own
        named = next((name for name in (start, network) if name in BACKBONES and is_published(name)), "")
        known = published_input(named) if named else {}
    known |= input_of(file) if file else {}
    size, resampling = known.pop("size", None), known.pop("interpolation", None)
    given: Raw = {f"network.{name}": value for name, value in known.items()}  # mean, std
    given |= {"data.image_size": size[0]} if size and size[0] == size[1] else {}
    return given | ({"data.resampling": resampling} if resampling in RESAMPLING else {})


@lru_cache(maxsize=1)
def _published(name: str) -> WeightFile:
    return WeightFile(Path(name), published_weights(name), {})


def _checksum(init: Init) -> str:
    """Of the weights to start from; they must be those that the settings name, if they do."""
    if is_published(init.encoder):
        path, digest = Path(init.encoder), Weights(_published(init.encoder).tensors).digest()
    else:
        path = find_weight_file(init.encoder)
        digest = file_sha256(path)
    if init.sha256 not in ("", digest):
        raise FedsslError(
            f"{path}: not the file that the run was begun with (SHA-256 {digest[:12]}… not {init.sha256[:12]}…): "
            "put that one back, or start another run with --fresh and init.sha256 left out"
        )
    return digest


def pinned(config: Config) -> Config:
    """The settings with the checksum of the file that weights start from, so that no other file can take its place."""
    if not config.init.encoder:
        return config
    try:
        digest = _checksum(config.init)
    except FedsslError as error:
        raise FedsslError(f"init.encoder: {error}") from None
    return replace(config, init=config.init.model_copy(update={"sha256": digest}))


def build_networks(
    config: Config, dataset: Dataset, partition: Partition, device: torch.device, progress: Progress = silent
) -> tuple[SiameseMethod, str]:
    """The networks where they are trained, and in words where a method's public images come from."""
    method = build_method(config, dataset.train.channels, dataset.train.image_size)
    _check_views(method, config.augmentation.build(), dataset.train.channels, dataset.train.image_size)
    method.public, public_source = choose_public_images(config, dataset, partition, progress)
    method.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method, public_source


def _check_views(method: SiameseMethod, recipe: Recipe, channels: int, image_size: tuple[int, int]) -> None:
    """Refuses views of a size that cannot be made, or that the network does not take."""
    for group in method.view_groups:
        size = recipe.output(image_size, group.part)
        if size != image_size:
            tried = _crops(group.part, recipe.output(image_size)[0]) if group.part < 1 else VIEWS
            feature_size(method.online_encoder.backbone, channels, size, tried)


VIEWS_SIZE = "augmentation.output_size"
VIEWS = Input(f"views ({VIEWS_SIZE})", lambda side: f"set {VIEWS_SIZE} = {side}")


def _crops(part: float, whole: int) -> Input:
    """The small crops of views with this side."""

    def remedy(side: int) -> str:
        fitting = f"method.local_part = {side / whole:.3g}" if side <= whole else f"{VIEWS_SIZE} = {round(side / part)}"
        return f"set {fitting}, or method.local_views = 0 for none"

    return Input("small crops (method.local_part, method.local_views)", remedy)
