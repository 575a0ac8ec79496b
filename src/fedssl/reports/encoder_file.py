"""The trained encoder as one safetensors file that says how to build the network it belongs to."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedssl.errors import FedsslError
from fedssl.files import replacing
from fedssl.networks.backbones import find_backbone
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
        unfinished.write_bytes(save(encoder.tensors(), {"fedssl": json.dumps(about)}))


def load_encoder(run: str | Path) -> FeatureExtractor:
    """The encoder of a run folder (or of an encoder.safetensors), in evaluation mode."""
    path = Path(run)
    path = path / "encoder.safetensors" if path.is_dir() else path
    if not path.exists():
        raise FedsslError(f"{path}: there is no encoder: give a run folder or an encoder.safetensors")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedssl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise FedsslError(f"{path}: not an encoder written by fedssl ({error})") from None
    network = dict(about["network"])
    backbone = find_backbone(network.pop("name"))(about["channels"], **network)
    prefix = "backbone."
    backbone.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return FeatureExtractor(backbone, about["feature_size"]).eval()
