"""The trained encoder as one safetensors file that says how to build the network it belongs to."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.errors import DamagedError, FedsslError
from fedssl.files import replacing
from fedssl.networks.backbones import find_backbone
from fedssl.networks.weight_files import WeightFile, load_backbone, read_weight_file, weight_file
from fedssl.reports.run_record import ENCODER, MENDED, SUMMARY, read_summary
from fedssl.weights import Weights


class FeatureExtractor(nn.Module):
    """A batch of images (N x C x H x W; uint8, or floats from 0 to 1) to features (N x d)."""

    def __init__(self, backbone: nn.Module, feature_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_size = feature_size

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.float().div(255) if images.dtype == torch.uint8 else images
        features: Tensor = self.backbone(pixels)
        return features


def save_encoder(path: Path, encoder: Weights, about: dict[str, Any]) -> None:
    """Backbone and projector under their state-dict names; `about` (network, channels, feature_size …) as metadata."""
    with replacing(path) as unfinished:
        # Not save_file: its files are readable by their owner alone, and an encoder is made to be shared.
        unfinished.write_bytes(weight_file(encoder.tensors(), about))


def read_encoder(place: str | Path) -> WeightFile:
    """An encoder's file; that of a run must hold the very weights that its summary names."""
    file = read_weight_file(place)
    folder = file.path.parent
    if file.path.name != ENCODER or not (folder / SUMMARY).exists():
        return file
    if read_summary(folder).get("weights_sha256") not in (None, Weights(file.tensors).digest()):
        raise DamagedError(f"{file.path}: damaged, not the weights that {SUMMARY} names: {MENDED}")
    return file


def load_encoder_file(place: str | Path) -> tuple[FeatureExtractor, dict[str, Any]]:
    """The encoder that fedssl wrote to a file (or into a folder), in evaluation mode, and what it says about it."""
    file = read_encoder(place)
    try:
        network, channels, size = dict(file.about["network"]), file.about["channels"], file.about["feature_size"]
    except (KeyError, TypeError):
        raise FedsslError(
            f"{file.path}: not an encoder written by fedssl: it does not say to which network it belongs"
        ) from None
    backbone = find_backbone(network.pop("name"))(channels, **network)
    load_backbone(backbone, file)
    return FeatureExtractor(backbone, size).eval(), file.about
