"""Target 4 and the cost curves: CPU time and peak memory of a round as clients, model, images and views grow.

    python -m benchmarks.growth

Every point is a run in a process of its own (cost.py). The slope through the logarithms is the exponent: 1 is linear,
0 is flat. All clients take part in every round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from benchmarks.cost import Cost, cost
from benchmarks.measuring import Row, grows, slope, within
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import Encoder, HeadSizes, mlp

FEW, MANY = 10, 1000
IMAGES_A_CLIENT = 4
FEW_IMAGES = {
    "partition.num_clients": 2,
    "data.train_images": 64,
    "data.test_images": 32,
    "network.width": 8,
    "local_training.batch_size": 16,
}


@dataclass(frozen=True)
class Curve:
    name: str
    unit: str
    sizes: list[float]
    costs: list[Cost]

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """As `asdict` wrote it."""
        return cls(record["name"], record["unit"], record["sizes"], [Cost(**cost) for cost in record["costs"]])

    def exponent(self, of: str) -> float:
        return slope(self.sizes, [getattr(cost, of) for cost in self.costs])


def measured(name: str, unit: str, sizes: Sequence[float], settings: Callable[[Any], dict[str, Any]]) -> Curve:
    return Curve(name, unit, list(sizes), [cost(settings(size)) for size in sizes])


@cache
def clients_curve() -> Curve:
    """A model of 0.23 MB: a thousand of them in memory would be seen at once."""
    return measured(
        "clients",
        "clients",
        (FEW, 30, 100, 300, MANY),
        lambda clients: {
            "partition.num_clients": clients,
            "data.train_images": IMAGES_A_CLIENT * clients,
            "data.image_size": 16,
            "network.width": 8,
            "network.head_hidden": 128,
            "network.head_out": 64,
            "local_training.batch_size": IMAGES_A_CLIENT,
        },
    )


@cache
def model_curve() -> Curve:
    """ResNet-18 from a sixteenth of the paper's width to the paper's, with heads in proportion."""
    curve = measured(
        "model size",
        "parameters",
        (4, 8, 16, 32, 64),
        lambda width: {
            "partition.num_clients": 2,
            "data.train_images": 16,
            "network.name": "resnet18",
            "network.width": width,
            "network.head_hidden": 64 * width,
            "network.head_out": 32 * width,
            "local_training.batch_size": 8,
        },
    )
    return Curve(curve.name, curve.unit, [parameters(int(width)) for width in curve.sizes], curve.costs)


def parameters(width: int) -> int:
    """Of what a client trains: encoder and predictor."""
    heads = HeadSizes(64 * width, 32 * width)
    parts = (Encoder(resnet18(3, width=width), mlp(8 * width, heads)), mlp(heads.out, heads))
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


@cache
def images_curve() -> Curve:
    return measured(
        "images",
        "images per client",
        (64, 128, 256, 512, 1024),
        lambda images: {
            "partition.num_clients": 2,
            "data.train_images": 2 * images,
            "network.width": 16,
            "local_training.batch_size": 32,
        },
    )


@cache
def size_curve() -> Curve:
    """Twice the side is four times the pixels: 2 is linear in these."""
    return measured(
        "image size",
        "pixels a side",
        (32, 64, 96, 128, 224),
        lambda side: FEW_IMAGES | {"data.image_size": side},
    )


@cache
def views_curve() -> Curve:
    return measured("views", "views of an image", (2, 4, 8, 16), lambda views: FEW_IMAGES | {"method.views": views})


def curves() -> list[Curve]:
    return [clients_curve(), model_curve(), images_curve(), size_curve(), views_curve()]


def rows() -> list[Row]:
    clients, model, images, size, views = curves()
    few, many = clients.costs[0].megabytes, clients.costs[-1].megabytes
    none = float("-inf")
    return [
        within(f"4 peak memory, {MANY:,} clients", f"{FEW} clients", "MB", few, many, 1.1),
        grows("time against clients", "all take part", clients.exponent("seconds"), 0.85, 1.1),
        grows("memory against clients", "all take part", clients.exponent("megabytes"), none, 0.02),
        grows("time against images per client", "2 clients", images.exponent("seconds"), 0.85, 1.1),
        grows("time against parameters", "ResNet-18, widths 4 … 64", model.exponent("seconds"), none, 1.1),
        grows("memory against parameters", "ResNet-18, widths 4 … 64", model.exponent("megabytes"), none, 1),
        grows("time against pixels a side", "32 … 224", size.exponent("seconds"), none, 2.1),
        grows("memory against pixels a side", "32 … 224", size.exponent("megabytes"), none, 2),
        grows("time against views", "2 … 16", views.exponent("seconds"), none, 1.1),
        grows("memory against views", "2 … 16", views.exponent("megabytes"), none, 1),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
    for curve in curves():
        print(curve)
