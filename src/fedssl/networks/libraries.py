"""Networks of timm and torchvision by one name each, built without a download: no head, pooled features, images 0 to 1.

`timm:NAME` is data for a library that fedssl knows, not code that a file could choose: the name must be one that the
library lists, and only the settings below reach it.
"""

import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError, first_line
from fedssl.core.extras import need
from fedssl.core.registry import unknown
from fedssl.core.settings import Count, Fraction
from fedssl.networks.hub import one_request_to_the_hub

Size = tuple[int, int]
COLOUR = 3
GREY_WORLD = (0.5, 0.25)  # mean and deviation where a library has none for a model


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a library makes the network again, and which images its published weights were trained on."""

    library: str
    model: str
    arguments: dict[str, Any] = field(default_factory=dict)  # of timm.create_model, beside num_classes and in_chans
    head: str = ""  # the module that was left out, where that is not an argument
    published_input: dict[str, Any] = field(default_factory=dict)  # size, interpolation, mean, std; None: not known


class Normalisation(nn.Module):
    """(image − mean) / std for each channel; it follows from the settings, so it is no weight."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def timm_network(
    model: str,
    channels: int,
    image_size: Size,
    *,
    patch_size: Count | None = None,
    drop_path: Fraction = 0.0,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> nn.Module:
    """Any classification network of timm (extra `timm`); mean, std: default those of its published weights."""
    _check_model("timm", model, "network.name")
    import timm

    about = _timm_about(model)
    arguments: dict[str, Any] = {"img_size": list(image_size)} if about.get("fixed_input_size") else {}
    arguments |= {"patch_size": patch_size} if patch_size else {}
    arguments |= {"drop_path_rate": drop_path} if drop_path else {}
    create = partial(timm.create_model, model, num_classes=0, in_chans=channels, **arguments)
    made = _built(f"timm:{model}", partial(_of_any_size, create) if "img_size" in arguments else create, image_size)
    _check_patches(f"timm:{model}", made, image_size)
    origin = Origin(library="timm", model=model, arguments=arguments, published_input=_timm_input(model))
    return _with_input(made, origin, channels, mean, std)


def torchvision_network(
    model: str, channels: int, image_size: Size, *, mean: list[float] | None = None, std: list[float] | None = None
) -> nn.Module:
    """Any classification network of torchvision (extra `torchvision`), its last layer left out."""
    _check_model("torchvision", model, "network.name")
    from torchvision import models

    made = _built(f"torchvision:{model}", lambda: models.get_model(model, weights=None), image_size)
    # Its vision transformers are for one size; two old networks have more heads, for training.
    arguments: dict[str, Any] = {"image_size": image_size[0]} if hasattr(made, "image_size") else {}
    arguments |= {"aux_logits": False} if getattr(made, "aux_logits", False) else {}
    if arguments:
        made = _built(f"torchvision:{model}", lambda: models.get_model(model, weights=None, **arguments), image_size)
    head = _without_head(model, made)
    if channels != COLOUR:
        _for_channels(made, channels)
    published = _torchvision_input(model)
    origin = Origin(library="torchvision", model=model, arguments=arguments, head=head, published_input=published)
    return _with_input(made, origin, channels, mean, std)


def _of_any_size(create: Callable[..., nn.Module]) -> nn.Module:
    """With positions that are interpolated for views of other sizes, where the network can do that.

    The same weights at its own size, and the same features: exports need not say it.
    """
    try:
        return create(dynamic_img_size=True)
    except TypeError as error:  # raised before anything is drawn: initial weights do not depend on the attempt
        if "dynamic_img_size" not in str(error):
            raise
        return create()


def _built(name: str, make: Callable[[], nn.Module], image_size: Size) -> nn.Module:
    try:
        return make()
    except Exception as error:  # each network has its own way to say what it does not take
        raise FedsslError(
            f"network: {name} cannot be built for {image_size[0]}x{image_size[1]} images with these settings: "
            f"{first_line(error)}"
        ) from error


def _check_model(library: str, model: str, setting: str) -> None:
    """Refuses what the library does not list: its `hf-hub:` and `local-dir:` names would open anything."""
    need(library, f"{setting} = {library}:{model}")
    names = MODELS[library](model)
    if model not in names:
        raise unknown(f"{setting}: {library} has no classification network", model, names, LISTED[library], near=3)


def _check_patches(name: str, network: nn.Module, image_size: Size) -> None:
    """A transformer takes whole patches only, unless they overlap; timm would say so at the first batch."""
    embed = getattr(network, "patch_embed", None)
    patch, stride = getattr(embed, "patch_size", None), getattr(getattr(embed, "proj", None), "stride", None)
    if patch == stride and isinstance(patch, tuple) and any(map(operator.mod, image_size, patch)):
        nearest = max(patch[0], round(image_size[0] / patch[0]) * patch[0])
        raise FedsslError(
            f"network: {name} takes sides that are multiples of its patch size {patch[0]}, not "
            f"{image_size[0]}x{image_size[1]}: set data.image_size = {nearest}, or another network.patch_size"
        )


def _without_head(name: str, network: nn.Module) -> str:
    """Its last linear layer, or else convolution, gives its input back from now on; returns where that is."""
    for kind in (nn.Linear, nn.Conv2d):
        places: list[str] = [path for path, part in network.named_modules() if isinstance(part, kind)]
        if places:
            network.set_submodule(places[-1], nn.Identity())
            return places[-1]
    raise FedsslError(f"network.name: torchvision:{name} has no head that could be left out")


def _for_channels(network: nn.Module, channels: int) -> None:
    """Another first convolution for images that are not of three colours."""
    path, first = next((path, part) for path, part in network.named_modules() if isinstance(part, nn.Conv2d))
    about: dict[str, Any] = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
    made = nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **about)
    network.set_submodule(path, made)


def _with_input(
    network: nn.Module, origin: Origin, channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> nn.Module:
    """The network, which from now on takes images from 0 to 1: its children and weights keep the library's names."""
    known, values = origin.published_input, []
    for name, given, other in zip(("mean", "std"), (mean, std), GREY_WORLD, strict=True):
        values.append(_per_channel(name, given or known[name] or [other], channels))
    network.normalise = Normalisation(*values)
    network.origin = origin  # type: ignore[assignment]
    network.register_forward_pre_hook(_normalised)
    return network


def _normalised(network: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (network.normalise(arguments[0]), *arguments[1:])  # type: ignore[operator]


def _per_channel(name: str, values: Sequence[float], channels: int) -> list[float]:
    """Those of the colours; images of other channels take their average for each."""
    if len(values) not in (1, COLOUR, channels):
        raise FedsslError(f"network.{name}: {len(values)} numbers for images of {channels} channels: give {channels}")
    if len(values) == channels:
        return [float(value) for value in values]
    return [sum(values) / len(values)] * channels


def origin_of(network: nn.Module) -> Origin | None:
    """The library that made a network; None: fedssl, or the user."""
    origin = getattr(network, "origin", None)
    return origin if isinstance(origin, Origin) else None


def input_settings(network: nn.Module) -> dict[str, list[float]]:
    """Mean and deviation as settings, so that a file does not depend on what the library says next year."""
    part = getattr(network, "normalise", None)
    if not isinstance(part, Normalisation):
        return {}
    return {name: [round(value, 6) for value in getattr(part, name).flatten().tolist()] for name in ("mean", "std")}


def converted(network: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights of other names (DINOv2's …) or for another image size, as timm itself converts them; or as they are."""
    module = type(network).__module__
    convert = getattr(sys.modules[module], "checkpoint_filter_fn", None) if module.startswith("timm.") else None
    try:
        made: Mapping[str, Tensor] = convert(dict(tensors), network) if convert else tensors
    except Exception:  # of another network: the comparison of names says in which way
        return tensors
    return made


def _timm_models(model: str) -> Collection[str]:
    """With the names of weights, `resnet18.a1_in1k`, where one is asked for."""
    from timm import list_models

    return list_models(pretrained="." in model)  # type: ignore[no-any-return]


def _torchvision_models(model: str) -> Collection[str]:  # noqa: ARG001
    from torchvision import models

    return models.list_models(module=models)  # type: ignore[no-any-return]


def _timm_about(model: str) -> dict[str, Any]:
    from timm import get_pretrained_cfg

    known = get_pretrained_cfg(model)
    return known.to_dict() if known else {}


def _timm_input(model: str) -> dict[str, Any]:
    about = _timm_about(model)
    size, inside = about.get("input_size"), {name: list(about.get(name) or ()) or None for name in ("mean", "std")}
    return {"size": list(size[1:]) if size else None, "interpolation": about.get("interpolation"), **inside}


def _torchvision_input(model: str) -> dict[str, Any]:
    from torchvision.models import get_model_weights

    about = get_model_weights(model).DEFAULT.transforms()
    inside = {"mean": list(about.mean), "std": list(about.std)}
    return {"size": [about.crop_size[0]] * 2, "interpolation": about.interpolation.value, **inside}


def _timm_published(model: str) -> nn.Module:
    from timm import create_model

    with one_request_to_the_hub() as why:
        try:
            return create_model(model, pretrained=True, num_classes=0)  # type: ignore[no-any-return]
        except Exception as error:
            raise ConnectionError(why or str(error)) from error


def _torchvision_published(model: str) -> nn.Module:
    from torchvision.models import get_model

    return get_model(model, weights="DEFAULT")  # type: ignore[no-any-return]


LISTED = {"timm": "timm.list_models()", "torchvision": "torchvision.models.list_models(module=torchvision.models)"}
MODELS = {"timm": _timm_models, "torchvision": _torchvision_models}
PUBLISHED = {"timm": _timm_published, "torchvision": _torchvision_published}
INPUTS = {"timm": _timm_input, "torchvision": _torchvision_input}


def is_published(place: str) -> bool:
    """Whether it names weights that a library fetches, such as timm:resnet18, and not a file."""
    library, separator, _ = place.partition(":")
    return bool(separator) and library in PUBLISHED


def published_input(name: str) -> dict[str, Any]:
    """Of the images that a library's weights were trained on, as far as the library itself says."""
    library, _, model = name.partition(":")
    _check_model(library, model, "network.name")
    return {key: value for key, value in INPUTS[library](model).items() if value is not None}


def published_weights(name: str) -> dict[str, Tensor]:
    """The weights that a library has for a model of its own, fetched by it where this machine may."""
    library, _, model = name.partition(":")
    _check_model(library, model, "network.pretrained")
    try:
        return dict(PUBLISHED[library](model).state_dict())
    except Exception as error:  # no network, no such weights
        raise FedsslError(
            f"{library} could not fetch weights of {model} ({first_line(error)}): get them as a .safetensors file "
            "elsewhere and set network.pretrained to it"
        ) from error
