"""Target 7: the bytes a client sends a round, for the paper's network.

PYTHONPATH=src python benchmarks/traffic.py
"""

from measuring import Row, within

from fedssl.federation.client import weights_of
from fedssl.federation.messages import GlobalWeights
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import HeadSizes

AT_MOST = 154e6


def rows() -> list[Row]:
    """The authors' code sends the target encoder too."""
    weights = weights_of(BYOL(resnet18(3), 512, HeadSizes()))
    ours = GlobalWeights(weights.online, weights.predictor).num_bytes()
    authors = ours + weights.target.num_bytes()
    return [
        within(
            "7 bytes a client sends",
            "with the target, as the authors",
            "MB",
            authors / 1e6,
            ours / 1e6,
            AT_MOST / authors,
        )
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
