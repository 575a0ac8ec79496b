"""FedCA: SimCLR with a momentum copy, negatives that clients share, and alignment to a base encoder on public images.

After Zhang et al., Federated Unsupervised Representation Learning (2020), which published no code; docs/deviations.md
says how we read it. FEATURES LEAVE THE CLIENT: the projections that a client shares may tell something of its images.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from fedssl.core.settings import Count, Fraction, NonNegative, Positive
from fedssl.methods.base import PublicImages, SiameseMethod
from fedssl.methods.losses import alignment, nt_xent
from fedssl.networks.heads import Encoder, HeadSizes, mlp
from fedssl.networks.inputs import as_input

UNIT = 1e-3  # how far from 1 the length of a normalised vector may be
AT_ONCE = 256  # public images that the base encoder looks at together


class FedCA(SiameseMethod):
    """Contrastive, with a dictionary of all clients' projections as negatives; features leave the client.

    SimCLR's loss over online projections, the dictionary's added to the negatives; + align_weight · ‖norm f(x) − norm
    f_base(x)‖² over public images x. The momentum copy makes the projections that are shared. Without a dictionary and
    public images it is SimCLR: so is the base encoder trained.
    Needs: two encoders in memory, public images. Leaves the client: the encoder, and projections of some images.
    """

    departs = (
        "published without code, read as: SimCLR's loss over the batch with the dictionary's projections as "
        "further negatives, temperature 0.1; a client sends the last `method.shared_projections` normalised "
        "projections of its momentum copy (0.99); the dictionary is the last round's clients, equal parts, at most "
        "`method.dictionary_size`, own ones among them; public images are `method.public_images` of the training "
        "set, then no client's, or `method.public_data`; the server trains the base encoder on these with SimCLR "
        "for `method.align_epochs` before round 1; alignment is 0.01 · mean ‖norm f(x) − norm f_base(x)‖² over a "
        "batch of them, not augmented, in a forward of its own that enters the BatchNorm statistics"
    )

    leaves = "normalised projections of some of its images (features)"

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        temperature: Positive = 0.1,
        momentum: Fraction = 0.99,
        shared_projections: Count = 256,  # that a client sends a round, the last ones it saw
        dictionary_size: Count = 1024,  # that the server keeps of a round, as many of every client
        align_weight: NonNegative = 0.01,
        public_images: Annotated[int, Ge(2)] = 512,  # noqa: ARG002 - of the training set, at random; they then belong to no client
        public_data: str = "",  # noqa: ARG002 - another dataset to take them from
        align_epochs: Count = 100,  # noqa: ARG002 - of the base encoder, at the server, before round 1
    ) -> None:
        # Public images and their base are made outside: `public_images`.
        super().__init__(Encoder(backbone, mlp(feature_size, heads)), has_target=True)
        self.temperature, self.momentum, self.align_weight = temperature, momentum, align_weight
        self.shared_projections, self.dictionary_size = shared_projections, dictionary_size
        self.size = heads.out
        self.dictionary = self.aligned = self.recent = torch.empty(0, self.size)  # D x d, P x d, S x d

    @classmethod
    def public_images(cls, settings: Mapping[str, Any]) -> PublicImages:
        return PublicImages(settings["public_images"], settings["public_data"], settings["align_epochs"])

    def receive(self, payload: dict[str, Tensor]) -> None:
        nothing, device = torch.empty(0, self.size), next(self.parameters()).device
        self.dictionary = payload.get("dictionary", nothing).to(device)
        self.aligned = payload.get("aligned", nothing).to(device)

    def start_round(self) -> None:
        self.recent = torch.empty(0, self.size)

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        view_1, view_2 = views  # B x C x H x W
        misaligned = self._misalignment(view_1)
        z1, z2 = self.online_encoder(view_1), self.online_encoder(view_2)  # B x d
        self._remember(view_1)
        return nt_xent(z1, z2, self.temperature, self.dictionary.to(z1.device)) + self.align_weight * misaligned

    def _misalignment(self, like: Tensor) -> Tensor:
        """How far the encoder is from the base encoder on public images, as many as a batch has, drawn at random."""
        if self.public is None or not len(self.aligned):
            return torch.zeros((), device=like.device)
        drawn = torch.randint(len(self.public), (len(like),))  # from the generator that a client's round seeds
        images = as_input(self.public.index_select(0, drawn), like.device)  # B x C x H x W
        return alignment(self.online_encoder(images), self.aligned.index_select(0, drawn.to(self.aligned.device)))

    @torch.no_grad()
    def _remember(self, view: Tensor) -> None:
        assert self.target_encoder is not None
        keys = F.normalize(self.target_encoder(view).float(), dim=1)  # B x d
        self.recent = torch.cat([self.recent.to(keys.device), keys])[-self.shared_projections :]

    def after_step(self) -> None:
        self.move_target(self.momentum)

    def payload(self) -> dict[str, Tensor]:
        """Features leave the client here: the momentum copy's normalised projections of the last images it saw."""
        return {"projections": self.recent.cpu().contiguous()}

    def pool(self, payloads: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The dictionary of the next round: as many projections of every client, the newest, in order of clients."""
        each = max(self.dictionary_size // max(len(payloads), 1), 1)
        parts = [payload["projections"][-each:] for payload in payloads]  # up to `each` x d
        return {"dictionary": torch.cat(parts)[: self.dictionary_size]} if parts else {}

    def payload_problem(self, payload: dict[str, Tensor]) -> str:
        if set(payload) != {"projections"}:
            return f"got {', '.join(sorted(payload)) or 'nothing'}, expected projections"
        sent = payload["projections"]
        if sent.dtype != torch.float32 or sent.ndim != 2 or sent.shape[1] != self.size:
            return (
                f"projections: got {sent.dtype} of shape {tuple(sent.shape)}, expected torch.float32 (…, {self.size})"
            )
        if not 0 < len(sent) <= self.shared_projections:
            return f"projections: {len(sent)}, not from 1 to {self.shared_projections}"
        lengths = sent.norm(dim=1)
        wrong = ~((lengths - 1).abs() <= UNIT)  # NaN is wrong too
        return f"projections: row {int(wrong.nonzero()[0])} is not normalised" if bool(wrong.any()) else ""

    @torch.no_grad()
    def first_payload(self) -> dict[str, Tensor]:
        """The trained base's normalised projections of the public images, in their order."""
        assert self.public is not None
        device = next(self.parameters()).device
        self.eval()
        parts = [self.online_encoder(as_input(images, device)) for images in torch.split(self.public, AT_ONCE)]
        return {"aligned": F.normalize(torch.cat(parts).float(), dim=1).cpu()}
