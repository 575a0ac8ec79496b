"""ResNets by the names of torchvision and timm: which of ours load there, and the lines that do it.

Both build a 7x7 stem of stride 2 and a max-pool; ours is 3x3 without one, as in the paper. No argument of theirs gives
that (timm's other stems are three convolutions), so the two modules are replaced after the model is made.
"""

from collections.abc import Callable
from typing import Any

from fedssl.core.errors import FedsslError

About = dict[str, Any]
WIDTH = 64  # of the stem, fixed in both libraries
BLOCKS = {"resnet18": ("BasicBlock", [2, 2, 2, 2]), "resnet10": ("BasicBlock", [1, 1, 1, 1])}
BLOCKS["resnet50"] = ("Bottleneck", [3, 4, 6, 3])
NOT_IN_TIMM = ("resnet10",)  # its own resnet10t has another stem


def check_resnet(library: str) -> Callable[[About], None]:
    """Refuses networks that the library cannot build."""

    def check(about: About) -> None:
        network = about["network"]
        name, width = network["name"], network.get("width", WIDTH)
        instead = "choose safetensors, onnx, torch-export or hub"
        if name not in BLOCKS:
            raise FedsslError(f"--to {library}: it has no network like {name}: {instead}")
        if network.get("stem", "learned") != "learned":
            raise FedsslError(f"--to {library}: its ResNets have no {network['stem']} stem (network.stem): {instead}")
        if width != WIDTH:
            raise FedsslError(
                f"--to {library}: its ResNets begin with {WIDTH} channels, this one with {width} (network.width): "
                f"{instead}"
            )

    return check


def resnet_facts(about: About) -> dict[str, Any]:
    """What the lines that build such a network name: its block, its depths, its width; of another network nothing."""
    name = about["network"]["name"]
    if name not in BLOCKS:
        return {}
    block, depths = BLOCKS[name]
    return {"block": block, "depths": depths, "width": WIDTH, "in_timm": name not in NOT_IN_TIMM}
