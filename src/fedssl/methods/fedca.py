"""FedCA: SimCLR with negatives that clients share, and a base encoder on public images. FEATURES LEAVE THE CLIENT.

After Zhang et al. (2020), who published no code; docs/deviations.md says how we read it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedssl.core.settings import Count, Fraction, NonNegative, Positive
from fedssl.methods.losses import nt_xent
from fedssl.methods.payloads import tensor_problem, unit_rows_problem
from fedssl.methods.public_base import PublicBase, Several
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class FedCA(PublicBase):
    """Contrastive, with a dictionary of all clients' projections as negatives; features leave the client.

    SimCLR's loss with these negatives + align_weight · ‖norm f(x) − norm f_base(x)‖² over public images x. The
    momentum copy makes what is shared. Without dictionary and public images it is SimCLR: so the base is trained.
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
        public_images: Several = 512,  # noqa: ARG002 - of the training set, at random; they then belong to no client
        public_data: str = "",  # noqa: ARG002 - another dataset to take them from
        align_epochs: Count = 100,  # noqa: ARG002 - of the base encoder, at the server, before round 1
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)), has_target=True)
        self.temperature, self.momentum, self.align_weight = temperature, momentum, align_weight
        self.shared, self.dictionary_size, self.size = shared_projections, dictionary_size, heads.out
        self.dictionary = self.aligned = self.recent = torch.empty(0, self.size)  # D x d, P x d, S x d

    def receive(self, payload: dict[str, Tensor]) -> None:
        nothing, device = torch.empty(0, self.size), next(self.parameters()).device
        self.dictionary, self.aligned = (payload.get(name, nothing).to(device) for name in ("dictionary", "aligned"))

    def start_round(self) -> None:
        self.recent = torch.empty(0, self.size)

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        misaligned = self.misalignment(views[0])
        z1, z2 = (self.online_encoder(view) for view in views)  # B x d
        with torch.no_grad():
            keys = nn.functional.normalize(self.target_encoder(views[0]).float(), dim=1)  # type: ignore[misc]  # B x d
        self.recent = torch.cat([self.recent.to(keys.device), keys])[-self.shared :]
        return nt_xent(z1, z2, self.temperature, self.dictionary.to(z1.device)) + self.align_weight * misaligned

    def after_step(self) -> None:
        self.move_target(self.momentum)

    def payload(self) -> dict[str, Tensor]:
        """Features leave the client here: the momentum copy's normalised projections of the last images it saw."""
        return {"projections": self.recent.cpu().contiguous()}

    def payload_problem(self, payload: dict[str, Tensor]) -> str:
        problem = tensor_problem(payload, "projections", (None, self.size))
        if not problem and not 0 < (count := len(payload["projections"])) <= self.shared:
            problem = f"projections: {count}, not from 1 to {self.shared}"
        return problem or unit_rows_problem(payload, "projections")

    def pool(self, payloads: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The dictionary of the next round: as many projections of every client, the newest, in order of clients."""
        each = max(self.dictionary_size // max(len(payloads), 1), 1)
        parts = [payload["projections"][-each:] for payload in payloads]  # up to `each` x d
        return {"dictionary": torch.cat(parts)[: self.dictionary_size]} if parts else {}
