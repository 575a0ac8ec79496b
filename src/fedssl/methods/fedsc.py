"""FedSC: spectral contrast, also against other clients' correlations. A MATRIX OF FEATURES LEAVES THE CLIENT."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedssl.core.seeding import torch_stream
from fedssl.core.settings import Fraction, NonNegative, Positive
from fedssl.methods.base import ClientRound, SiameseMethod
from fedssl.methods.losses import correlation, shortened, spectral_loss
from fedssl.methods.payloads import tensor_problem
from fedssl.networks.heads import Encoder, HeadSizes, mlp


class FedSC(SiameseMethod):
    """−2 tr(z1ᵀ z2) / N + a ‖R‖² + 2 (1 − a) tr(R · R̄), R̄ the mean of the other clients' R (Jing et al., 2024).

    R = zᵀz / 2N of both views' z, none longer than √bound; a falls from 1 to `alpha_end`. Noise: no privacy (`leaves`).
    Needs: memory for d x d values. Leaves the client: the encoder, and the mean R of its round.
    """

    departs = (
        "a client's matrix is the mean over the batches of its round and travels with the next task; theirs is "
        "measured in five further passes; its noise (0.001) follows from the seed and is no differential privacy"
    )

    leaves = "the correlation matrix of its projections (features; the noise on it follows from the run's seed)"
    own: Tensor
    own_round: Tensor
    round_number = seed = 0

    def __init__(
        self,
        backbone: nn.Module,
        feature_size: int,
        heads: HeadSizes,
        *,
        bound: Positive = 4.0,  # the paper's mu: of a projection's squared length
        alpha_end: Fraction = 0.2,
        noise: NonNegative = 0.001,  # standard deviation, on every value of R
    ) -> None:
        super().__init__(Encoder(backbone, mlp(feature_size, heads)))
        self.bound, self.alpha_end, self.noise = bound, alpha_end, noise
        self.register_buffer("own", torch.zeros(heads.out, heads.out))  # what it sent last, d x d, and in which round
        self.register_buffer("own_round", torch.zeros((), dtype=torch.int64))
        self.alpha, self.others = torch.ones(()), torch.zeros(heads.out, heads.out)
        self.latest, self.total, self.steps = torch.zeros(()), torch.zeros(()), 0  # R of a step, their sum and number

    def prepare(self, at: ClientRound) -> None:
        self.round_number, self.seed, self.steps, self.total = at.round_number, at.seed, 0, torch.zeros(())
        self.share = 1 - (1 - self.alpha_end) * (at.round_number - 1) / max(at.rounds - 1, 1)  # a, if others

    def receive(self, payload: dict[str, Tensor]) -> None:
        """The mean over the others of the last round: the sum without what it sent itself, if that is in it."""
        mine = int(self.own_round) == self.round_number - 1 > 0
        count = int(payload["clients"]) - mine if payload else 0
        total = payload["correlation"].to(self.own.device) - mine * self.own if count else torch.zeros_like(self.own)
        self.others, self.alpha = total / max(count, 1), torch.tensor(self.share if count else 1.0)

    def loss(self, views: Sequence[Tensor]) -> Tensor:
        z1, z2 = (shortened(self.online_encoder(view), self.bound) for view in views)  # B x d
        self.latest = (own := correlation(z1, z2)).detach()  # d x d
        return spectral_loss(z1, z2, own, self.others.to(z1.device), self.alpha.to(z1.device))

    def after_step(self) -> None:
        self.total, self.steps = self.total + self.latest, self.steps + 1

    def payload(self) -> dict[str, Tensor]:
        """A matrix of features leaves the client here; it is kept too, to be taken off the sum that comes back."""
        noise = torch.randn(self.own.shape, generator=torch_stream(self.seed, "correlation-noise"))
        self.own.copy_(self.total / max(self.steps, 1)).add_(noise.to(self.own.device), alpha=self.noise)
        self.own_round.fill_(self.round_number)
        return {"correlation": self.own.cpu().clone()}

    def payload_problem(self, payload: dict[str, Tensor]) -> str:
        if problem := tensor_problem(payload, "correlation", self.own.shape):
            return problem
        most, sent = self.bound + 10 * self.noise, payload["correlation"]
        return "" if bool((sent.abs() <= most).all()) else f"correlation: a value beyond {most:g}"  # NaN is beyond too

    def pool(self, payloads: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Sums only: no client sees the matrix of one other, unless the two are alone."""
        total = sum((payload["correlation"] for payload in payloads), start=torch.zeros(self.own.shape))
        return {"correlation": total, "clients": torch.tensor(len(payloads))}
