"""Encoders in timm and torchvision: what the library must be asked for, and the lines that load the weights there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.encoders.export import resnets
from fedssl.encoders.trained import TrainedEncoder, normalisation
from fedssl.networks.convnext import DEPTHS
from fedssl.networks.vit import MLP_RATIO, VisionTransformer, positions
from fedssl.networks.weight_files import standard_names

About = dict[str, Any]
INSTEAD = "choose safetensors, onnx, torch-export or hub"


@dataclass(frozen=True)
class TimmModel:
    """`timm.create_model(architecture, num_classes=0, in_chans=…, **arguments)` has exactly these weights."""

    architecture: str
    arguments: dict[str, Any]
    then: str = ""  # a line of Python that makes it the same network
    opens: bool = True  # model.safetensors holds all of it: timm opens the hub folder by itself


def _vit(about: About) -> TimmModel:
    network, size = about["network"], about["image_size"]
    arguments = {"img_size": size, "patch_size": network["patch_size"], "embed_dim": network["width"]}
    heads = max(1, network["width"] // 64)
    rest = {"depth": network["depth"], "num_heads": heads, "mlp_ratio": MLP_RATIO, "class_token": False}
    pooling = {"global_pool": "avg", "fc_norm": False}
    return TimmModel("vit_tiny_patch16_224", arguments | rest | pooling, opens=False)  # its positions are no weights


def _convnext(about: About) -> TimmModel:
    width, patch_size = about["network"]["width"], about["network"]["patch_size"]
    dims = [width * 2**number for number in range(len(DEPTHS))]
    arguments = {"patch_size": patch_size, "depths": list(DEPTHS), "dims": dims, "conv_mlp": False}
    halves = "model.stages[0].downsample = torch.nn.Identity()  # which timm halves once more behind a stem of 2x2"
    return TimmModel("convnext_atto", arguments, halves if patch_size == 2 else "", opens=patch_size != 2)


OWN_IN_TIMM: dict[str, Callable[[About], TimmModel]] = {"vit-tiny": _vit, "convnext-atto": _convnext}


def in_timm(about: About) -> TimmModel | None:
    """How timm makes this network; None: it cannot by its own arguments."""
    origin, own = about.get("library", {}), OWN_IN_TIMM.get(about["network"]["name"])
    if origin.get("library") == "timm":
        return TimmModel(origin["model"].partition(".")[0], origin["arguments"])
    return own(about) if own else None


def check_timm(about: About) -> None:
    """Refuses networks that timm cannot build."""
    if not in_timm(about):
        resnets.check_resnet("timm")(about)


def check_torchvision(about: About) -> None:
    """Refuses networks that torchvision cannot build."""
    if about.get("library", {}).get("library") != "torchvision":
        resnets.check_resnet("torchvision")(about)
    elif about["channels"] != 3:
        raise FedsslError(
            f"--to torchvision: its networks take 3 channels, this one takes {about['channels']}: {INSTEAD}"
        )


def library_tensors(encoder: TrainedEncoder) -> dict[str, Tensor]:
    """The weights under the library's names."""
    backbone = encoder.model.backbone
    tensors = Weights.of(backbone).tensors()
    if isinstance(backbone, VisionTransformer):
        rows, columns = backbone.grid(tuple(encoder.about["image_size"]))
        return {**tensors, "pos_embed": positions(rows, columns, backbone.width).flatten(0, 1)[None]}
    return tensors if "library" in encoder.about else standard_names(tensors)


def library_facts(about: About) -> dict[str, Any]:
    """What the templates that show the use of a file name of a library's network."""
    model, origin = in_timm(about), about.get("library")
    arguments = model.arguments if model else origin["arguments"] if origin else {}
    return {
        **resnets.resnet_facts(about),
        "model": model,
        "origin": origin,
        "arguments": "".join(f", {key}={value!r}" for key, value in arguments.items()),
        "inside": normalisation(about),
    }


def timm_config(about: About) -> dict[str, Any]:
    """What config.json must say so that timm opens the hub folder; nothing where it cannot."""
    model = in_timm(about)
    if not model or not model.opens:
        return {}
    shape, inside = [about["channels"], *about["image_size"]], normalisation(about)
    pretrained = {
        "input_size": shape,
        "fixed_input_size": "img_size" in model.arguments,
        "interpolation": about.get("resampling", "bilinear"),
        "crop_pct": 1.0,
        "mean": inside.get("mean", [0.0] * shape[0]),
        "std": inside.get("std", [1.0] * shape[0]),
        "num_classes": 0,
    }
    arguments = {**model.arguments, "in_chans": shape[0]}
    facts = {"architecture": model.architecture, "num_classes": 0, "num_features": about["feature_size"]}
    return {**facts, "model_args": arguments, "pretrained_cfg": pretrained}
