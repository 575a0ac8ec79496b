"""Target 7: the bytes a client sends a round, for the paper's network.

python -m benchmarks.traffic
"""

from benchmarks.measuring import Row, within
from fedssl.federation.client import weights_of
from fedssl.federation.messages import GlobalWeights
from fedssl.federation.wire import Wire, WireDtype
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import HeadSizes

AT_MOST: dict[WireDtype, float] = {"fp32": 154e6, "bf16": 77e6, "int8": 40e6}


def rows() -> list[Row]:
    """The authors' code sends the target encoder too."""
    weights = weights_of(BYOL(resnet18(3), 512, HeadSizes()))
    shared = GlobalWeights(weights.online, weights.predictor)
    authors = shared.num_bytes() + weights.target.num_bytes()
    return [
        within(
            f"7 bytes a client sends, {dtype}",
            "with the target, as the authors",
            "MB",
            authors / 1e6,
            Wire(dtype).encode(shared).num_bytes() / 1e6,
            at_most / authors,
        )
        for dtype, at_most in AT_MOST.items()
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
