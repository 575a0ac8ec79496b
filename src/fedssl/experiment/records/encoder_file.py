"""The trained encoder as one safetensors file that says how to build the network it belongs to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import replacing
from fedssl.core.registry import AllowCode
from fedssl.core.weights import Weights
from fedssl.experiment.records.encoder_facts import EncoderFacts
from fedssl.experiment.records.run_record import ENCODER, MENDED, SUMMARY, read_summary
from fedssl.networks.inputs import as_floats
from fedssl.networks.weight_files import WeightFile, load_backbone, read_weight_file, weight_file

ROUNDING = 1e-4  # by which resampled floats may leave 0 to 1


class FeatureExtractor(nn.Module):
    """A batch of images (N x C x H x W; uint8, or floats from 0 to 1) to features (N x d)."""

    def __init__(self, backbone: nn.Module, feature_size: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.backbone, self.feature_size, self.shape = backbone, feature_size, shape

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(as_pixels(images, self.shape))
        return features


def as_pixels(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Floats from 0 to 1; images of another size or range would get features too, but wrong ones: they are refused."""
    if not torch.compiler.is_compiling():  # an exported program cannot look at its data
        _check_images(images, shape)
    return as_floats(images)


def _check_images(images: Tensor, shape: Sequence[int]) -> None:
    given, wanted = (" x ".join(map(str, sizes)) for sizes in (images.shape, ("N", *shape)))
    if images.ndim != 4 or list(images.shape[1:]) != list(shape):
        raise FedsslError(
            f"images: of shape {given}, this encoder takes {wanted}: bring them to that size, or "
            "let `fedssl embed` or fedssl.encoders.sklearn.Encoder do it"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise FedsslError(f"images: {images.dtype}: give uint8, or floats from 0 to 1")
    if images.is_floating_point() and images.numel():
        check_range("images", *map(float, images.detach().aminmax()))


def check_range(what: str, low: float, high: float) -> None:
    """Refuses floats that are not from 0 to 1, also NaN."""
    if not -ROUNDING <= low <= high <= 1 + ROUNDING:
        raise FedsslError(
            f"{what}: floats from {low:g} to {high:g}: give floats from 0 to 1 (uint8 / 255, no mean, no standard "
            "deviation), or uint8"
        )


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


def load_encoder_file(place: str | Path, allow_code: AllowCode = ()) -> tuple[FeatureExtractor, dict[str, Any]]:
    """The encoder that fedssl wrote to a file (or into a folder), in evaluation mode, and what it says about it."""
    file = read_encoder(place)
    facts = EncoderFacts.of(file)
    backbone = facts.build(file, allow_code)
    load_backbone(backbone, file)
    return FeatureExtractor(backbone, facts.feature_size, (facts.channels, *facts.image_size)).eval(), file.about
