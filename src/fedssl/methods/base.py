"""What a self-supervised method is to the federation: Siamese networks with a loss over views."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fedssl.core.view_groups import PAIR, ViewGroup
from fedssl.core.weights import Weights
from fedssl.networks.heads import Encoder

Views = Annotated[int, Ge(2)]  # of each image, where a method takes as many as one likes


@dataclass(frozen=True)
class PublicImages:
    """Images that a method wants everybody to see: how many, of which dataset, and how long a base is trained on them.

    The base is trained by the server, before round 1. A method that wants some has settings `public_images` and
    `public_data`, which the errors name.
    """

    count: int = 0
    data: str = ""  # "": the run's own
    base_epochs: int = 0


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """A client's round, as far as a method may look at it: whose it is, which one, and what the server sent for it."""

    client_id: int
    num_clients: int  # of the run: client ids are below it
    round_number: int  # 1 … rounds
    rounds: int
    seed: int  # of all that is random in it
    encoder: Weights  # W_g; what of BatchNorm stays at the client is its own
    predictor: Weights


class SiameseMethod(nn.Module, ABC):
    """An online encoder, a predictor (nn.Identity when there is none) and, for momentum methods, a target encoder.

    Constructor: (backbone, feature_size, heads, *, settings…). Tensors that a client keeps from round to round beside
    the networks (MoCo's queue) are buffers registered on the method itself.
    """

    view_groups: tuple[ViewGroup, ...] = PAIR  # the views of each image that a loss gets, in this order

    recipe: ClassVar[str] = "simclr"  # the augmentation and the learning-rate schedule that its paper trains it with
    schedule: ClassVar[str] = "cosine"
    leaves: ClassVar[str] = ""  # what leaves a client beside weights and counts, in words
    departs: ClassVar[str] = ""  # where it is not as its own paper has it; the documentation lists it
    whole_images: ClassVar[bool] = True  # False: its loss never makes one vector of a whole image

    public: Tensor | None = None  # the images of `public_images`, uint8, once they are chosen

    def __init__(self, online_encoder: Encoder, predictor: nn.Module | None = None, has_target: bool = False) -> None:
        super().__init__()
        self.online_encoder = online_encoder
        self.predictor = predictor or nn.Identity()
        self.target_encoder: Encoder | None = None
        if has_target:
            self.target_encoder = deepcopy(online_encoder)  # a copy: the two must never share memory
            self.target_encoder.requires_grad_(False)

    @classmethod
    def public_images(cls, settings: Mapping[str, Any]) -> PublicImages:  # noqa: ARG003
        """What a method of these settings needs of images that everybody may see."""
        return PublicImages()

    def check(self, num_clients: int) -> None:
        """Before the first round: refuses a federation that it cannot work with."""

    @abstractmethod
    def loss(self, views: Sequence[Tensor]) -> Tensor:
        """The loss of a batch, given the views that `view_groups` asks for.

        Each view passes a network in its own forward, so BatchNorm sees one at a time, unless a setting joins them.
        """

    def after_step(self) -> None:
        """After every optimizer step; momentum methods move their target here."""

    def prepare(self, at: ClientRound) -> None:
        """Client side, before `receive`: takes what it wants to know of the round."""

    def start_round(self) -> None:
        """After the update rule has set the weights and before local training."""

    def start_epoch(self) -> None:
        """Before every epoch of local training."""

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.parameters() if parameter.requires_grad)

    def memory(self) -> dict[str, Tensor]:
        """What the client keeps beside the networks, by name."""
        return dict(self.named_buffers(recurse=False))

    def payload(self) -> dict[str, Tensor]:
        """What a method sends beside its weights after a round; nothing, unless it says so aloud."""
        return {}

    def payload_problem(self, payload: dict[str, Tensor]) -> str:
        """Server side: what a client may not send as a payload, in words; "": all is well."""
        return f"{min(payload)}: this method shares nothing but weights" if payload else ""

    def pool(self, payloads: list[dict[str, Tensor]]) -> dict[str, Tensor]:  # noqa: ARG002
        """Server side: joins the clients' payloads; what it does not name in the next tasks stays as it was."""
        return {}

    def first_payload(self) -> dict[str, Tensor]:
        """Server side, before round 1, of a copy that was trained on the public images."""
        return {}

    def receive(self, payload: dict[str, Tensor]) -> None:
        """Client side, before a round: takes what the server pooled."""

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        """W^t ← m W^t + (1 − m) W, parameters only (Algorithm 1; the paper's section 3.2 has m and 1 − m swapped)."""
        assert self.target_encoder is not None
        target: list[Tensor] = list(self.target_encoder.parameters())
        online: list[Tensor] = list(self.online_encoder.parameters())
        torch._foreach_lerp_(target, online, 1 - momentum)
