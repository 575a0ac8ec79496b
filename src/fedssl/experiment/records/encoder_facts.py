"""What a weight file says about its network, checked before anything is built by it: such files come from strangers."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from fedssl.core.errors import FedsslError, reason
from fedssl.core.registry import AllowCode
from fedssl.core.settings import Positive
from fedssl.data.own.decoding import Resampling
from fedssl.experiment.config.resolve import network_settings
from fedssl.networks.backbones import BACKBONES, find_backbone
from fedssl.networks.weight_files import WeightFile

Side = Annotated[int, Field(ge=1, le=2**14)]  # pixels
Channels = Annotated[int, Field(ge=1, le=2**12)]
Facts = TypeVar("Facts", bound=BaseModel)
STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")
SPARE = 2**20  # values that a network may have beyond those of its file, such as positions that are made anew


class DecodingFacts(BaseModel):
    """The fields of `Decoding`, as an export writes them."""

    model_config = STRICT
    image_size: Side
    channels: Channels
    fit: Literal["crop", "stretch"] = "crop"
    white: Annotated[int, Field(ge=1, le=2**16 - 1)] = 2**16 - 1
    resampling: Resampling = "bilinear"


class EncoderFacts(BaseModel):
    """All that is needed to build an encoder; what else a file says is for people."""

    model_config = STRICT | ConfigDict(extra="ignore")
    network: dict[str, Any]
    channels: Channels
    image_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    feature_size: Annotated[int, Field(ge=1, le=2**20)]
    resampling: Resampling = "bilinear"
    decoding: DecodingFacts | None = None

    @classmethod
    def of(cls, file: WeightFile) -> Self:
        text = "not an encoder written by fedssl: it does not say to which network it belongs"
        return _checked(cls, file.about, f"{file.path}: {text}")

    def build(self, file: WeightFile, allow_code: AllowCode) -> nn.Module:
        """The network with weights of its own; one that the file's tensors could never fill is not even made."""
        settings = dict(self.network)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise FedsslError(f"{file.path}: its network has no name")
        make = find_backbone(name, allow_code, str(file.path), (self.image_size[0], self.image_size[1]))
        try:
            if not BACKBONES.path(name) and ":" not in name:  # one of ours
                settings = network_settings(name, settings)
                with torch.device("meta"):  # shapes without memory
                    _check_size(make(self.channels, **settings), file)
            return make(self.channels, **settings)
        except Exception as error:  # a library raises what it likes at settings that it does not know
            raise FedsslError(f"{file.path}: makes no network of what it says: {reason(error)}") from None


class InputFacts(BaseModel):
    """The images that weights were trained on, by the names of timm."""

    model_config = STRICT | ConfigDict(extra="ignore")
    input_size: Annotated[list[Side], Field(min_length=3, max_length=3)] | None = None  # channels first
    interpolation: str | None = None
    mean: list[float] | None = None
    std: list[Positive] | None = None


def input_of(file: WeightFile) -> dict[str, Any]:
    """Size, interpolation, mean and std, as far as the file says, or the config.json that timm's hub has beside it."""
    if file.about:
        own, path = EncoderFacts.of(file), file.path
        about: Any = {"input_size": [own.channels, *own.image_size], "interpolation": own.resampling}
        about |= {name: own.network[name] for name in ("mean", "std") if name in own.network}
    else:
        path = file.path.parent / "config.json"
        about = _of_the_hub(path)
    facts = _checked(InputFacts, about, f"{path}: not understood, what it says of the images of these weights")
    known = {"size": facts.input_size and facts.input_size[1:], **facts.model_dump(exclude={"input_size"})}
    return {name: value for name, value in known.items() if value is not None}


def _of_the_hub(path: Path) -> Any:
    """Nothing where there is none, or one that is not timm's."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    timms = isinstance(content, dict) and "architecture" in content
    return content.get("pretrained_cfg", content) if timms else {}


def _checked(model: type[Facts], content: Any, text: str) -> Facts:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise FedsslError(f"{text} ({field}: {problem['msg']})") from None


def _check_size(network: nn.Module, file: WeightFile) -> None:
    wanted = sum(tensor.numel() for tensor in network.state_dict().values())
    held = sum(tensor.numel() for tensor in file.tensors.values())
    if wanted > held + SPARE:
        raise FedsslError(f"the network has {wanted:,} values, the file {held:,}")
