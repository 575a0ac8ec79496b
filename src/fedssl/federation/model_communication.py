"""Operation 2, model communication: from a client's own weights and the new global ones to where its round starts."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.registry import Registry
from fedssl.core.settings import Fraction, NonNegative
from fedssl.core.weights import Norm, Weights, conv_names, divergence, interpolate
from fedssl.federation.messages import ClientState, ClientWeights, GlobalWeights, Scalars, TrainResult, TrainTask

Between = Literal["global-local", "before-after"]
Stale = Literal["selective", "always", "keep-target"]
COMPARES_ONLINE = (
    "update_rule.lambda_at: 'client' compares the online encoder, but aggregation.upload = \"target\" averages "
    "another: use 'server'"
)
FROM_EXACT = (
    "lambda_k would be made at the server from a client's exact weights: set update_rule.lambda_at to 'client', or a "
    "fixed update_rule.scale"
)
NEEDS_EXACT = f"privacy.name: {FROM_EXACT}"
BatchNormSharing = Literal["average", "local-statistics", "local-layers"]


@dataclass(frozen=True, kw_only=True)
class UpdateRule(ABC):
    """How a client starts a round. A frozen dataclass: its fields are its settings.

    At its first participation every client takes the global weights, target included. `update` sees the later rounds;
    its numbers are recorded with the round (mu, scale, divergence; ema = 1 when local weights were mixed in).
    """

    shares: ClassVar[bool] = True  # False: nothing is averaged, every client goes its own way
    mu_remedy: ClassVar[str] = ""  # which of its settings help clients that keep mu = 1

    def check(self, encoder: Weights) -> None:  # noqa: B027
        """Before the first round: refuses an encoder that this rule cannot work with."""

    def problem(self, upload: str, private: bool) -> str:  # noqa: ARG002
        """Why it cannot work where clients upload this encoder, or no exact weights, and the remedy; "": it can."""
        return ""

    def needs_single_results(self) -> str:
        """Why the server must see each client's own weights or numbers, and the remedy; "": sums are enough."""
        noted = type(self).note is not UpdateRule.note
        return "the server would note something of each client: use another update_rule.name" if noted else ""

    @abstractmethod
    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        """The weights with which the client starts this round."""

    def kept(self, scalars: Scalars) -> Scalars:  # noqa: ARG002
        """Client side: what of an update's numbers the client keeps in its own state."""
        return {}

    def measure(self, before: Weights, after: Weights) -> Scalars:  # noqa: ARG002
        """Client side, after local training: what this rule must remember of the online encoder's change."""
        return {}

    def reads(self) -> tuple[str, ...]:
        """Server side: the numbers of a result that `note` looks at."""
        return ()

    def note(self, noted: Scalars, result: TrainResult, aggregated: GlobalWeights) -> Scalars:  # noqa: ARG002
        """Server side, after aggregation: what this client's next task carries."""
        return noted


def begin(rule: UpdateRule, local: ClientState | None, task: TrainTask) -> tuple[ClientWeights, Scalars]:
    """Where client k starts round r: by its rule, or from the global weights when it has none of its own."""
    if local is None:
        return from_global(task)
    return rule.update(local, task)


def from_global(task: TrainTask) -> tuple[ClientWeights, Scalars]:
    """online, target := W_g, predictor := W_g^p (loading copies, so the two encoders never share memory)."""
    encoder, predictor = task.global_weights.encoder, task.global_weights.predictor
    return ClientWeights(online=encoder, predictor=predictor, target=encoder), {"ema": 0.0}


def _missed(local: ClientState, task: TrainTask) -> bool:
    return local.last_round != task.round_number - 1


def _starts_over(stale: Stale, local: ClientState, task: TrainTask) -> bool:
    return stale == "selective" and _missed(local, task)


@dataclass(frozen=True, kw_only=True)
class Replace(UpdateRule):
    """FedAvg's update (FedSimCLR, FedMoCo, FedSimSiam, FedBYOL): online and predictor := global; target stays local."""

    stale: Stale = "selective"

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        if _starts_over(self.stale, local, task):
            return from_global(task)
        return ClientWeights(task.global_weights.encoder, task.global_weights.predictor, local.weights.target), {
            "ema": 0.0
        }


@dataclass(frozen=True, kw_only=True)
class UpdateBoth(UpdateRule):
    """Online, predictor and target := global: no local knowledge is kept."""

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:  # noqa: ARG002
        return from_global(task)


@dataclass(frozen=True, kw_only=True)
class NoUpdate(UpdateRule):
    """Standalone training: every client keeps its own weights; nothing is averaged."""

    shares: ClassVar[bool] = False

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:  # noqa: ARG002
        return local.weights, {"ema": 0.0}


@dataclass(frozen=True, kw_only=True)
class ConstantMu(UpdateRule):
    """EMA with a fixed decay: mu_encoder · W_k + (1 − mu_encoder) · W_g, likewise the predictor."""

    mu_encoder: Fraction = 0.5
    mu_predictor: Fraction = 0.5
    stale: Stale = "selective"
    mu_remedy: ClassVar[str] = "smaller update_rule.mu_encoder"

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        if _starts_over(self.stale, local, task):
            return from_global(task)
        if _missed(local, task) and self.stale == "keep-target":
            return _mixed(local, task, 0.0, 0.0), {"ema": 0.0}
        scalars = {"ema": 1.0, "mu": self.mu_encoder, "mu_predictor": self.mu_predictor}
        return _mixed(local, task, self.mu_encoder, self.mu_predictor), scalars


class _DivergenceRule(UpdateRule):
    """Shared by the rules that look at a divergence; the fields it reads are declared by each of them."""

    between: Between  # which two encoders
    norm: Norm  # on which scale

    def check(self, encoder: Weights) -> None:
        if self.norm == "mean-conv" and not conv_names(encoder):
            raise FedsslError(
                "update_rule.norm: 'mean-conv' needs convolutions named conv*, this network has none: use "
                "'mean-matrix', the same mean over all weight matrices, or 'l2'"
            )

    def measure(self, before: Weights, after: Weights) -> Scalars:
        return {"training_divergence": divergence(before, after, self.norm)} if self.between == "before-after" else {}

    def reads(self) -> tuple[str, ...]:
        return ("training_divergence",) if self.between == "before-after" else ()

    def distance(self, global_: GlobalWeights, local: Weights, scalars: Scalars) -> float:
        """‖W_g − W_k‖ (paper), or how far the client's own last training moved the encoder (authors)."""
        if self.between == "before-after":
            return scalars["training_divergence"]
        return divergence(global_.encoder, local, self.norm)


@dataclass(frozen=True, kw_only=True)
class FedU(_DivergenceRule):
    """Divergence-aware predictor update: the predictor is replaced only while the divergence is below the threshold."""

    between: Between = "global-local"
    norm: Norm = "mean-conv"
    stale: Stale = "selective"
    threshold: NonNegative = 0.4  # on the scale of mean-conv

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        if _starts_over(self.stale, local, task):
            return from_global(task)
        distance = self.distance(task.global_weights, local.weights.online, local.scalars)
        replaced = distance < self.threshold
        weights = _mixed(local, task, 0.0, 0.0 if replaced else 1.0)
        return weights, {"ema": 0.0, "divergence": distance, "predictor_replaced": float(replaced)}


class _LambdaRule(_DivergenceRule):
    """Where FedEMA's lambda_k comes from: it is fixed, or the autoscaler sets it at the server or at the client."""

    scale: float | None
    tau: float
    lambda_at: str
    mu_remedy: ClassVar[str] = "smaller update_rule.tau or scale, or between = 'before-after'"

    def lambda_of(self, local: ClientState, task: TrainTask) -> float | None:
        """lambda, or lambda_k as the server noted it, or as the client kept it; at its second task it is set here."""
        known = task.note if self.lambda_at == "server" else local.scalars
        if self.scale is not None or self.lambda_at == "server" or "scale" in known:
            return known.get("scale") if self.scale is None else self.scale
        return autoscaled(self.tau, self.distance(task.global_weights, local.weights.online, local.scalars))

    def note(self, noted: Scalars, result: TrainResult, aggregated: GlobalWeights) -> Scalars:
        """lambda_k ← tau / ‖W_g^{r+1} − W_k^r‖ if it is not set."""
        if "scale" in noted or self.scale is not None or self.lambda_at == "client":
            return noted
        scale = autoscaled(self.tau, self.distance(aggregated, result.weights.encoder, result.scalars))
        return noted if scale is None else {**noted, "scale": scale}

    def kept(self, scalars: Scalars) -> Scalars:
        mine = self.lambda_at == "client" and self.scale is None and "scale" in scalars
        return {"scale": scalars["scale"]} if mine else {}

    def problem(self, upload: str, private: bool) -> str:
        if self.lambda_at == "client":
            return COMPARES_ONLINE if upload == "target" else ""
        return NEEDS_EXACT if private and self.scale is None else ""

    def needs_single_results(self) -> str:
        fixed = self.lambda_at == "client" or self.scale is not None
        return "" if fixed else FROM_EXACT


@dataclass(frozen=True, kw_only=True)
class FedEMA(_LambdaRule):
    """W_k ← mu W_k + (1 − mu) W_g, same for the predictor, mu = min(lambda_k · divergence, 1) (the paper's method).

    `scale` fixes lambda; without it the autoscaler sets lambda_k = tau / divergence once, at the client's first round,
    so that its first mu is tau. scale = 0 is FedBYOL. lambda_at = "client": nothing about a single client is needed at
    the server, no note travels; equal under full participation, where the next task brings W_g^{r+1}.
    """

    between: Between = "global-local"
    norm: Norm = "l2"
    stale: Stale = "selective"
    scale: NonNegative | None = None
    tau: Fraction = 0.7
    apply_to: Literal["both", "encoder", "predictor"] = "both"
    lambda_at: Literal["server", "client"] = "server"

    def update(self, local: ClientState, task: TrainTask) -> tuple[ClientWeights, Scalars]:
        scale = self.lambda_of(local, task)
        if scale is None or _starts_over(self.stale, local, task):
            start, scalars = from_global(task)
            return start, scalars if scale is None or self.lambda_at == "server" else {**scalars, "scale": scale}
        if _missed(local, task) and self.stale == "keep-target":
            return _mixed(local, task, 0.0, 0.0), {"ema": 0.0, "scale": scale}
        distance = self.distance(task.global_weights, local.weights.online, local.scalars)
        mu = min(scale * distance, 1.0)
        encoder_mu, predictor_mu = (mu if self.apply_to in ("both", part) else 0.0 for part in ("encoder", "predictor"))
        scalars = {"ema": 1.0, "mu": mu, "scale": scale, "divergence": distance}
        return _mixed(local, task, encoder_mu, predictor_mu), scalars


def autoscaled(tau: float, distance: float) -> float | None:
    """lambda_k = tau / divergence; None: a divergence of next to 0 leaves it for later."""
    scale = tau / distance if distance > 0 else math.inf
    return scale if math.isfinite(scale) else None


def _mixed(local: ClientState, task: TrainTask, encoder_mu: float, predictor_mu: float) -> ClientWeights:
    """Online encoder and predictor between local (mu = 1) and global (mu = 0); the target stays local."""
    return ClientWeights(
        interpolate(local.weights.online, task.global_weights.encoder, encoder_mu),
        interpolate(local.weights.predictor, task.global_weights.predictor, predictor_mu),
        local.weights.target,
    )


UPDATE_RULES: Registry[type[UpdateRule]] = Registry(
    "update_rules",
    "update_rule.name",
    {
        "replace": Replace,
        "update-both": UpdateBoth,
        "fedu": FedU,
        "fedema": FedEMA,
        "constant-mu": ConstantMu,
        "none": NoUpdate,
    },
    base=UpdateRule,
)


def private_names(module: nn.Module, sharing: BatchNormSharing) -> frozenset[str]:
    """The tensors that stay at the client: none, BatchNorm's statistics, or its whole layers as in FedBN.

    Layers are found by type: a filter on names would miss those in shortcuts and heads.
    """
    names: set[str] = set()
    for prefix, child in module.named_modules():
        if sharing != "average" and isinstance(child, nn.modules.batchnorm._BatchNorm):
            leaves = dict(child.named_buffers()) | (dict(child.named_parameters()) if sharing == "local-layers" else {})
            names.update(f"{prefix}.{leaf}" if prefix else leaf for leaf in leaves)
    return frozenset(names)
