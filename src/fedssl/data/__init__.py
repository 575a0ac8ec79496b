"""What a client trains on: images, how they are dealt out to clients, and the two augmented views of each."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedssl.core.registry import Registry

if TYPE_CHECKING:
    from fedssl.data.dataset import Dataset

# Each is called with a `Progress`, for what takes long, and with its settings.
DATASETS: "Registry[Callable[..., Dataset]]" = Registry(
    "datasets",
    "data.name",
    {
        "cifar10": "fedssl.data.standard.cached:cifar10",
        "cifar100": "fedssl.data.standard.cached:cifar100",
        "synthetic": "fedssl.data.standard.cached:synthetic",
        "folder": "fedssl.data.own.layouts:folder",
        "sites": "fedssl.data.own.layouts:sites",
    },
)
