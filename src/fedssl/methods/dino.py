"""DINO: a student that sees small crops names the same prototypes as a slowly moving teacher that sees large ones."""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from fedssl.core.settings import Count, Fraction, Positive
from fedssl.core.view_groups import PAIR, ViewGroup
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import dino_loss
from fedssl.networks.heads import Encoder, HeadSizes, PrototypeHead

LOCAL_CROPS = (0.05, 0.4)  # area, as a part of the image; that of global crops is the recipe's


class DINO(SiameseMethod):
    """Self-distillation over large and small crops, the teacher is an EMA of the student (Caron et al., 2021).

    The centre of the teacher's outputs is client memory. In a client's first epoch its prototypes do not learn.
    Needs: 2 + local_views views of each image, two encoders in memory. Leaves the client: the online encoder.
    """

    departs = (
        "small crops of half the side instead of 96 / 224; 4,096 prototypes instead of 65,536; a fixed teacher "
        "temperature (0.04) and momentum; prototypes stand still in a client's first epoch; the centre is a "
        "client's own; the run's SGD instead of AdamW; the head sizes of the preset before `+feddino` "
        "(`network.head_hidden`, `network.head_out`) instead of 2048 and 256"
    )

    recipe = "dino"
    centre: Tensor
    epochs_begun: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,  # the paper's: hidden 2048, out 256; no BatchNorm
        *,
        local_views: Annotated[int, Ge(0)] = 8,
        local_part: Annotated[float, Interval(gt=0, le=1)] = 0.5,  # of a global view's side; the paper's is 96 / 224
        prototypes: Count = 4096,  # for small networks; the paper has 65,536 for ImageNet
        momentum: Fraction = 0.996,
        student_temperature: Positive = 0.1,
        teacher_temperature: Positive = 0.04,
        centre_momentum: Fraction = 0.9,
        frozen_epochs: Annotated[int, Ge(0)] = 1,
    ) -> None:
        super().__init__(Encoder(backbone, PrototypeHead(feature_size, heads, prototypes)), has_target=True)
        self.momentum, self.centre_momentum, self.frozen_epochs = momentum, centre_momentum, frozen_epochs
        self.temperatures = student_temperature, teacher_temperature
        local = ViewGroup(local_views, local_part, LOCAL_CROPS)
        self.view_groups = (*PAIR, local) if local_views else PAIR
        self.register_buffer("centre", torch.zeros(prototypes))
        self.register_buffer("epochs_begun", torch.zeros((), dtype=torch.int64))

    def start_epoch(self) -> None:
        self.epochs_begun += 1
        assert isinstance(self.online_encoder.projector, PrototypeHead)
        self.online_encoder.projector.frozen = int(self.epochs_begun) <= self.frozen_epochs

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        assert self.target_encoder is not None
        student = torch.stack([self.online_encoder(view) for view in views])  # V x B x K
        with torch.no_grad():
            teacher = torch.stack([self.target_encoder(view) for view in views[:2]]).float()  # 2 x B x K
            centre = self.centre.clone()  # of earlier batches
            self.centre.lerp_(teacher.mean(dim=(0, 1)), 1 - self.centre_momentum)
        return dino_loss(student, teacher, centre, *self.temperatures)

    def after_step(self) -> None:
        self.move_target(self.momentum)
