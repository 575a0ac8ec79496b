"""Before round 1: the base of a method that has one, trained by the server on public images, kept in the run folder."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedssl.core.errors import DamagedError
from fedssl.core.sealed import Sealed, named_tensors, seal, unseal
from fedssl.core.seeding import derive_seed
from fedssl.core.weights import Weights
from fedssl.experiment.build.data import public_images
from fedssl.experiment.build.networks import build_method
from fedssl.experiment.build.parts import Parts
from fedssl.experiment.config.schema import Config
from fedssl.federation.local_training import train_locally
from fedssl.federation.messages import Payload


def first_payload(config: Config, parts: Parts, folder: Path) -> Payload:
    """What the first tasks carry beside weights: a function of settings and public images, also after a stop."""
    method, epochs = parts.client.method, public_images(config).base_epochs
    if not epochs or method.public is None:
        return {}
    train = parts.dataset.train
    base = build_method(config, train.channels, train.image_size)  # as the clients begin, untouched by calibration
    base.public = method.public
    base.to(device=parts.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    about = _about(config, method.public)
    kept = _kept(folder, about)
    if kept:
        kept.weights("online").load_into(base.online_encoder)
    else:
        settings = replace(config.local_training, epochs=epochs)
        seed = derive_seed(config.run.seed, "base-encoder")
        train_locally(base, method.public, parts.client.recipe, settings, settings.lr, seed)
        seal(folder, named_tensors("online", Weights.of(base.online_encoder)), about)
    return base.first_payload()


def _about(config: Config, public: torch.Tensor) -> dict[str, Any]:
    """All that decides the base's weights, as JSON gives it back."""
    return {
        "seed": config.run.seed,
        "method": config.method.as_raw(),
        "network": config.network.model_dump(),
        "init": {"sha256": config.init.sha256, "skip": config.init.skip},
        "augmentation": config.augmentation.as_raw(),
        "local_training": asdict(config.local_training),
        "public_images": Weights({"pixels": public}).digest(),
    }


def _kept(folder: Path, about: dict[str, Any]) -> Sealed | None:
    """A base that a stopped process left whole; a damaged one is made again."""
    try:
        sealed = unseal(folder) if folder.exists() else None
    except DamagedError:
        return None
    return sealed if sealed and sealed.facts == about else None
