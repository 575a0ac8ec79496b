"""Optimizers of local training: how gradients become steps, which tensors decay, and rates that fall with depth."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from fedssl.core.eager import eager
from fedssl.core.errors import FedsslError
from fedssl.methods.base import SiameseMethod
from fedssl.networks.blocks import blocks_of

if TYPE_CHECKING:
    from fedssl.federation.local_training import LocalTraining

OptimizerName = Literal["sgd", "adamw", "lars"]
Groups = list[dict[str, Any]]
BACKBONE_PREFIXES = ("online_encoder.backbone.", "target_encoder.backbone.")
# Whose settings these are: of another optimizer they would have no effect.
SETTINGS_OF = {"sgd_momentum": ("sgd", "lars"), "beta1": ("adamw",), "beta2": ("adamw",), "trust": ("lars",)}


class LARS(Optimizer):
    """SGD whose steps are as long, for each matrix, as a fixed share of its own length (You et al., 2017).

    u = ∇ + decay · w,  v ← momentum · v + trust · ‖w‖ / ‖u‖ · u,  w ← w − lr · v; as in BYOL and MoCo v3 norms and
    biases are not scaled.
    """

    def __init__(self, groups: Groups, *, lr: float, momentum: float, weight_decay: float, trust: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step; parameters without a gradient stay."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        update = parameter.grad.add(parameter, alpha=group["weight_decay"])  # type: ignore[union-attr]
        if parameter.ndim > 1:
            lengths = parameter.norm(), update.norm()
            ratio = group["trust"] * lengths[0] / lengths[1]
            # On the device, without a look at a value; at zero length there is nothing to go by.
            update.mul_(torch.where((lengths[0] > 0) & (lengths[1] > 0), ratio, 1.0))
        state = self.state[parameter]
        if "speed" not in state:
            state["speed"] = torch.zeros_like(parameter)
        parameter.sub_(state["speed"].mul_(group["momentum"]).add_(update), alpha=group["lr"])


def _sgd(groups: Groups, settings: "LocalTraining", lr: float, fused: bool) -> Optimizer:
    # Fused: one pass over the weights instead of three.
    return eager(SGD)(groups, lr=lr, momentum=settings.sgd_momentum, weight_decay=settings.weight_decay, fused=fused)


def _adamw(groups: Groups, settings: "LocalTraining", lr: float, fused: bool) -> Optimizer:
    betas = settings.beta1, settings.beta2
    return eager(AdamW)(groups, lr=lr, betas=betas, weight_decay=settings.weight_decay, fused=fused)


def _lars(groups: Groups, settings: "LocalTraining", lr: float, fused: bool) -> Optimizer:  # noqa: ARG001
    about = {"momentum": settings.sgd_momentum, "weight_decay": settings.weight_decay}
    return eager(LARS)(groups, lr=lr, trust=settings.trust, **about)


MAKERS: dict[OptimizerName, Callable[[Groups, "LocalTraining", float, bool], Optimizer]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "lars": _lars,
}


def make_optimizer(method: SiameseMethod, settings: "LocalTraining", lr: float, device: torch.device) -> Optimizer:
    """Over all that the method trains."""
    groups = parameter_groups(method, settings)
    optimizer = MAKERS[settings.optimizer](groups, settings, lr, device.type in ("cpu", "cuda"))
    set_rate(optimizer, lr)
    return optimizer


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next steps; of a group that is scaled, its share."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def parameter_groups(method: SiameseMethod, settings: "LocalTraining") -> Groups:
    """One group, unless tensors differ in their rate (`layer_decay`) or in their decay (`weight_decay_on`)."""
    if settings.layer_decay == 1 and settings.weight_decay_on == "all":
        return [{"params": list(method.trained_parameters()), "scale": 1.0}]
    scales, groups = _scales(method, settings.layer_decay), dict[tuple[float, bool], dict[str, Any]]()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            scale, decays = scales.get(name, 1.0), parameter.ndim > 1 or settings.weight_decay_on == "all"
            decay = {} if decays else {"weight_decay": 0.0}
            group = groups.setdefault((scale, decays), {"params": [], "scale": scale, **decay})
            group["params"].append(parameter)
    return list(groups.values())


def _scales(method: SiameseMethod, layer_decay: float) -> dict[str, float]:
    """By parameter: the heads have the whole rate, the last block layer_decay of it, the one before its square …"""
    blocks = blocks_of(method.online_encoder.backbone)
    return {
        prefix + name: layer_decay ** (len(blocks) - number)
        for number, block in enumerate(blocks)
        for name in block.parameters
        for prefix in BACKBONE_PREFIXES
    }


def check_settings(settings: "LocalTraining", defaults: Iterable[tuple[str, Any]]) -> None:
    """Refuses a value that the chosen optimizer would not look at."""
    for name, default in defaults:
        users = SETTINGS_OF.get(name, (settings.optimizer,))
        if settings.optimizer not in users and getattr(settings, name) != default:
            raise FedsslError(
                f"local_training.{name}: {settings.optimizer} has no such setting, only {' and '.join(users)}: leave "
                f"it out, or choose another local_training.optimizer"
            )
