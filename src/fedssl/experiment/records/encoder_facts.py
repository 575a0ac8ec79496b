"""What a weight file says about its network, checked before anything is built by it: such files come from strangers."""

from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from fedssl.core.errors import FedsslError, reason
from fedssl.core.registry import AllowCode
from fedssl.data.own.decoding import Resampling
from fedssl.experiment.config.resolve import network_settings
from fedssl.networks.backbones import BACKBONES, find_backbone
from fedssl.networks.weight_files import WeightFile

Side = Annotated[int, Field(ge=1, le=2**14)]  # pixels
Channels = Annotated[int, Field(ge=1, le=2**12)]
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
        try:
            return cls.model_validate(file.about)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise FedsslError(
                f"{file.path}: not an encoder written by fedssl: it does not say to which network it belongs "
                f"({field}: {problem['msg']})"
            ) from None

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


def _check_size(network: nn.Module, file: WeightFile) -> None:
    wanted = sum(tensor.numel() for tensor in network.state_dict().values())
    held = sum(tensor.numel() for tensor in file.tensors.values())
    if wanted > held + SPARE:
        raise FedsslError(f"the network has {wanted:,} values, the file {held:,}")
