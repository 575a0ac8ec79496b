"""Alignment to a base encoder that the server trained on public images before round 1."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from fedssl.methods.base import PublicImages, SiameseMethod
from fedssl.methods.losses import alignment
from fedssl.networks.inputs import as_input

Several = Annotated[int, Ge(2)]
AT_ONCE = 256  # public images that the base encoder looks at together


class PublicBase(SiameseMethod):
    """A method whose encoder is held near a base encoder's view of public images, P x d in `aligned`."""

    aligned: Tensor

    @classmethod
    def public_images(cls, settings: Mapping[str, Any]) -> PublicImages:
        return PublicImages(settings["public_images"], settings["public_data"], settings["align_epochs"])

    def misalignment(self, like: Tensor) -> Tensor:
        """How far the encoder is from the base encoder on public images, as many as a batch has, drawn at random."""
        if self.public is None or not len(self.aligned):
            return torch.zeros((), device=like.device)
        drawn = torch.randint(len(self.public), (len(like),))  # from the generator that a client's round seeds
        images = as_input(self.public.index_select(0, drawn), like.device)  # B x C x H x W
        return alignment(self.online_encoder(images), self.aligned.index_select(0, drawn.to(self.aligned.device)))

    @torch.no_grad()
    def first_payload(self) -> dict[str, Tensor]:
        """The trained base's normalised projections of the public images, in their order."""
        assert self.public is not None
        device = next(self.parameters()).device
        self.eval()
        parts = [self.online_encoder(as_input(images, device)) for images in torch.split(self.public, AT_ONCE)]
        return {"aligned": F.normalize(torch.cat(parts).float(), dim=1).cpu()}
