"""The registry of methods: one file per method, one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedssl.methods.base import SiameseMethod
from fedssl.methods.byol import BYOL
from fedssl.methods.fedca import FedCA
from fedssl.methods.moco import MoCo
from fedssl.methods.simclr import SimCLR
from fedssl.methods.simsiam import SimSiam


@dataclass(frozen=True)
class MethodEntry:
    """How to build a method, and the augmentation recipe and learning-rate schedule its paper trains it with."""

    build: Callable[..., SiameseMethod]
    recipe: str = "simclr"
    schedule: str = "cosine"
    leaves: str = ""  # what leaves a client beside weights and counts, in words


METHODS: dict[str, MethodEntry] = {
    "simclr": MethodEntry(SimCLR),
    "mocov1": MethodEntry(partial(MoCo, head="linear", temperature=0.07), recipe="weak-jitter", schedule="constant"),
    "mocov2": MethodEntry(MoCo),
    "simsiam": MethodEntry(SimSiam),
    "byol": MethodEntry(BYOL),
    "fedca": MethodEntry(FedCA, leaves="normalised projections of some of its images (features)"),
}
