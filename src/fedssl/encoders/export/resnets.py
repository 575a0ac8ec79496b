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


def torchvision_usage(about: About) -> str:
    block, depths = BLOCKS[about["network"]["name"]]
    return f"""Names of torchvision's ResNet; the 3x3 stem and the missing max-pool are put in place by hand.

```python
from safetensors.torch import load_file
from torch import nn
from torchvision.models.resnet import {block}, ResNet

model = ResNet({block}, {depths})
{_stem(about)}
model.fc = nn.Identity()
model.load_state_dict(load_file("torchvision.safetensors"))
features = model.eval()(images)  # N x {about["feature_size"]}
```"""


def timm_usage(about: About) -> str:
    block, depths = BLOCKS[about["network"]["name"]]
    made = f'timm.create_model("{about["network"]["name"]}", num_classes=0, in_chans={about["channels"]})'
    imports = "import timm\n"
    if about["network"]["name"] in NOT_IN_TIMM:
        made = f"ResNet({block}, {depths}, num_classes=0, in_chans={about['channels']})"
        imports = f"from timm.models.resnet import {block}, ResNet\n"
    return f"""Names of timm's ResNet. No argument of it gives one 3x3 stem or no max-pool: both are replaced.

```python
{imports}from safetensors.torch import load_file
from torch import nn

model = {made}
{_stem(about)}
model.load_state_dict(load_file("timm.safetensors"))
features = model.eval()(images)  # N x {about["feature_size"]}
```"""


def _stem(about: About) -> str:
    stride = about["network"].get("stem_stride", 1)
    shape = f"{about['channels']}, {WIDTH}, kernel_size=3, stride={stride}, padding=1, bias=False"
    return f"model.conv1 = nn.Conv2d({shape})\nmodel.maxpool = nn.Identity()"
