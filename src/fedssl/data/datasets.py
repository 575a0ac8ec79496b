"""The datasets by name: what a config may ask for."""

from collections.abc import Callable

from fedssl.core.progress import Progress as Progress
from fedssl.data.dataset import Dataset as Dataset
from fedssl.data.folders import data_folder as data_folder  # as: part of this module's interface
from fedssl.data.own.layouts import folder, sites
from fedssl.data.standard.cached import cifar10, cifar100, synthetic

# Each is called with a `Progress`, for what takes long, and with its settings.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "synthetic": synthetic,
    "folder": folder,
    "sites": sites,
}
