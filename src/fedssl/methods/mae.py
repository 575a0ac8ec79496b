"""Masked autoencoder: from a quarter of an image's patches, paint the others."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.settings import Count
from fedssl.core.view_groups import ViewGroup
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import masked_patch_loss
from fedssl.networks.heads import Encoder, HeadSizes
from fedssl.networks.patch_decoder import PatchDecoder
from fedssl.networks.vit import VisionTransformer


class MaskedEncoder(Encoder):
    """The backbone alone; of some patches it gives their tokens, of whole images the mean of all tokens."""

    backbone: VisionTransformer

    def forward(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        if kept is None:
            return super().forward(images)  # B x d
        patches = self.backbone.patches(images)  # B x L x d
        return self.backbone.tokens(patches.take_along_dim(kept.unsqueeze(2), dim=1))  # B x kept x d


class MAE(SiameseMethod):
    """Reconstruction of masked patches by a transformer and a small decoder (He et al., 2022).

    Evaluation sees the mean of all tokens. Needs: network.name = "vit-tiny"; one view of each image, small batches do.
    Leaves the client: the encoder, and the decoder (as predictor) unless it stays.
    """

    departs = (
        "no class token; a decoder of half the width and a third of the depth of `vit-tiny`; evaluation on the "
        "mean of all tokens; the run's SGD instead of AdamW"
    )

    recipe, whole_images = "crop-flip", False
    view_groups = (ViewGroup(1),)

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,  # noqa: ARG002 - there is no projector
        *,
        masked: Annotated[float, Interval(gt=0, lt=1)] = 0.75,
        decoder: Literal["travels", "stays"] = "travels",  # stays: client memory
        decoder_width: Count = 96,  # half of vit-tiny's and a third of its depth, as the paper's beside ViT-L
        decoder_depth: Count = 4,
    ) -> None:
        if not isinstance(backbone, VisionTransformer):
            raise FedsslError('method.name: mae masks patches and needs their tokens: use network.name = "vit-tiny"')
        patch_pixels = backbone.patch_embed.proj.weight[0].numel()  # C x patch x patch
        made = PatchDecoder(feature_size, decoder_width, decoder_depth, patch_pixels)
        super().__init__(MaskedEncoder(backbone, nn.Identity()), made if decoder == "travels" else None)
        self.own_decoder = made if decoder == "stays" else None
        self.masked, self.patch_size, self.grid = masked, backbone.patch_size, backbone.grid

    def memory(self) -> dict[str, Tensor]:
        own = self.own_decoder.state_dict(prefix="own_decoder.") if self.own_decoder else {}
        return {**super().memory(), **own}

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        (images,) = views  # B x C x H x W
        pixels = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)  # B x L x P
        count, length = pixels.shape[:2]
        if length < 2:
            raise FedsslError(f"network.patch_size: {self.patch_size} leaves one patch, none to mask: make it smaller")
        # From the generator that a client's round seeds, on the CPU: the same patches whatever device trains.
        order = torch.rand(count, length).argsort(dim=1).to(images.device, non_blocking=True)  # B x L
        kept, hidden = order.tensor_split([max(1, round((1 - self.masked) * length))], dim=1)
        grid = self.grid((images.shape[2], images.shape[3]))
        tokens = self.online_encoder(images, kept)  # B x kept x d
        painted = (self.own_decoder or self.predictor)(tokens, order, grid)  # B x hidden x P
        return masked_patch_loss(painted, pixels.take_along_dim(hidden.unsqueeze(2), dim=1))
