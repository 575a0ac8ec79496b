"""Backbones: the paper's CIFAR ResNets, small ones for CPUs, timm's, torchvision's, or the user's by import path."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError, first_line
from fedssl.core.registry import AllowCode, Family, Registry
from fedssl.core.settings import Count
from fedssl.networks.whitening import Stem, make_stem

# Of a ResNet's convolutions: He's normal by fan-out, or what PyTorch gives every layer, as the authors' networks have.
Init = Literal["he", "pytorch"]
Stride = Literal[1, 2]
USUAL_SIZES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299, 336, 384, 448, 512, 518)  # of networks for one size only


class _SameLayoutBack(torch.autograd.Function):
    """Passes a tensor on; its gradient comes back in the tensor's own memory format."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last)
        ctx.memory_format = torch.channels_last if last else torch.contiguous_format
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous(memory_format=ctx.memory_format)


class AveragePool(nn.AdaptiveAvgPool2d):
    """The mean over positions; for 32x32 images it equals the paper's AvgPool2d(4)."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: Tensor) -> Tensor:
        # A mean hands its gradient back row-major: the layer before it would work on two layouts, five times slower.
        # Without gradients there is none to hand back, and exporters know no autograd functions.
        return super().forward(_SameLayoutBack.apply(x) if torch.is_grad_enabled() else x)  # type: ignore[no-untyped-call]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut; the stride sits on the 3x3, as in PyTorch's ResNet-50."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.shortcut(x))  # type: ignore[no-any-return]


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(ShortcutConv(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ShortcutConv(nn.Conv2d):
    """1x1 with a stride; for few channels the positions are picked first, which gives the same values.

    In channels-last memory oneDNN's backward pass of the former writes outside its memory when there are fewer channels
    than a vector block, 8 or 16 by CPU (oneDNN issue 6035): wrong gradients, or a crash some time later.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels >= 16:
            return super().forward(x)
        rows, columns = self.stride
        return nn.functional.conv2d(x[:, :, ::rows, ::columns], self.weight)


class ResNet(nn.Module):
    """ResNet for small images: 3x3 stem without max-pool; for 32x32 the last average pool is the paper's 4x4."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        width: int,
        channels: int,
        stem_stride: int,
        init: Init,
        stem: Stem,
    ) -> None:
        super().__init__()
        self.stem, channels = make_stem(stem, channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        in_channels = width
        for number, depth in enumerate(depths, start=1):
            stage_width = width * 2 ** (number - 1)
            blocks = []
            for index in range(depth):
                blocks.append(block(in_channels, stage_width, stride=2 if index == 0 and number > 1 else 1))
                in_channels = stage_width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.pool = AveragePool()
        for module in self.modules():
            if init == "he" and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(self.stem(images))))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.pool(x).flatten(1)  # type: ignore[no-any-return]


def resnet18(
    channels: int, *, width: Count = 64, stem_stride: Stride = 1, init: Init = "he", stem: Stem = "learned"
) -> ResNet:
    """ResNet-18 as in the paper's appendix (11.17 M parameters at width 64)."""
    return ResNet(
        BasicBlock, (2, 2, 2, 2), width=width, channels=channels, stem_stride=stem_stride, init=init, stem=stem
    )


def resnet10(
    channels: int, *, width: Count = 64, stem_stride: Stride = 1, init: Init = "he", stem: Stem = "learned"
) -> ResNet:
    """One block a stage: for CPUs."""
    return ResNet(
        BasicBlock, (1, 1, 1, 1), width=width, channels=channels, stem_stride=stem_stride, init=init, stem=stem
    )


def resnet50(
    channels: int, *, width: Count = 64, stem_stride: Stride = 1, init: Init = "he", stem: Stem = "learned"
) -> ResNet:
    """ResNet-50 as in the paper's appendix (23.5 M parameters at width 64)."""
    return ResNet(
        Bottleneck, (3, 4, 6, 3), width=width, channels=channels, stem_stride=stem_stride, init=init, stem=stem
    )


class ConvNet(nn.Module):
    """Four 3x3 convolutions, three of them with stride 2, then the average over positions."""

    def __init__(self, width: int, channels: int, stem_stride: int, stem: Stem = "learned") -> None:
        super().__init__()
        self.stem, channels = make_stem(stem, channels)
        widths = [channels, width, 2 * width, 4 * width, 8 * width]
        strides = (stem_stride, 3 - stem_stride, 2, 2)  # halving early makes it cheaper; the last map is the same
        for index, stride in enumerate(strides, start=1):
            convolution = nn.Conv2d(widths[index - 1], widths[index], 3, stride, padding=1, bias=False)
            self.add_module(f"conv{index}", convolution)
            self.add_module(f"bn{index}", nn.BatchNorm2d(widths[index]))
        self.relu = nn.ReLU(inplace=True)
        self.pool = AveragePool()

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for index in range(1, 5):
            x = self.relu(self.get_submodule(f"bn{index}")(self.get_submodule(f"conv{index}")(x)))
        return self.pool(x).flatten(1)  # type: ignore[no-any-return]


def convnet(channels: int, *, width: Count = 32, stem_stride: Literal[1, 2] = 1, stem: Stem = "learned") -> ConvNet:
    """A small four-layer convnet for CPUs (0.39 M parameters at width 32)."""
    return ConvNet(width, channels, stem_stride, stem)


BACKBONES: Registry[Callable[..., nn.Module]] = Registry(
    "networks",
    "network.name",
    {
        "resnet18": resnet18,
        "resnet50": resnet50,
        "resnet10": resnet10,
        "convnet": convnet,
        "vit-tiny": "fedssl.networks.vit:vit_tiny",
        "convnext-atto": "fedssl.networks.convnext:convnext_atto",
    },
    families={
        "timm": Family("fedssl.networks.libraries:timm_network", code=("create_model",)),
        "torchvision": Family("fedssl.networks.libraries:torchvision_network"),
    },
)


def find_backbone(
    name: str, allow_code: AllowCode = (), source: str = "", image_size: tuple[int, int] | None = None
) -> Callable[..., nn.Module]:
    """A registered backbone, or somebody else's if it is allowed; theirs is called with its settings alone."""
    factory = BACKBONES.find(name, allow_code, source)
    if name not in BACKBONES:
        return partial(_build_foreign, factory, name)
    sized = "image_size" in inspect.signature(factory).parameters  # it is built for images of one size
    return partial(factory, image_size=image_size) if sized else factory


def _build_foreign(factory: Callable[..., Any], name: str, channels: int, **settings: Any) -> nn.Module:
    if "channels" in inspect.signature(factory).parameters:
        settings = {"channels": channels, **settings}
    try:
        module = factory(**settings)
    except TypeError as error:
        raise FedsslError(f"network: {name!r} does not accept these settings: {error}") from error
    if not isinstance(module, nn.Module):
        raise FedsslError(f"network.name: {name!r} returned {type(module).__name__}, not a torch.nn.Module")
    return module


@dataclass(frozen=True)
class Input:
    """What a backbone is tried with, in words, and what to set so that it has sides of so many pixels."""

    name: str
    remedy: Callable[[int], str]


IMAGES = Input(
    "images",
    lambda side: (
        f"give it such images (data.image_size = {side}), or build it for this size with a setting of its own "
        "in [network]"
    ),
)


def _other_size(backbone: nn.Module, channels: int, image_size: tuple[int, int], remedy: Callable[[int], str]) -> str:
    """The nearest usual size that the backbone does take, and what to set; "" when it is not a matter of size."""
    for side in sorted(USUAL_SIZES, key=lambda side: abs(side - image_size[0])):
        try:
            backbone(torch.zeros(2, channels, side, side))
        except Exception:
            continue
        return f"; it takes {side}x{side}: {remedy(side)}"
    return ""


@torch.no_grad()
def feature_size(backbone: nn.Module, channels: int, image_size: tuple[int, int], tried: Input = IMAGES) -> int:
    """Found by a dry forward of two blank images; says so when the module does not map images to vectors."""
    was_training = backbone.training
    try:
        features = backbone.eval()(torch.zeros(2, channels, *image_size))
    except Exception as error:  # a user's module raises what it likes, a ViT of another size an AssertionError
        size, why = f"{channels}x{image_size[0]}x{image_size[1]}", first_line(error)
        other = _other_size(backbone, channels, image_size, tried.remedy)
        raise FedsslError(f"network: the backbone fails on {tried.name} of {size}: {why}{other}") from error
    finally:
        backbone.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise FedsslError(f"network: the backbone must return one vector per image (N x d), it returned {got}")
    return int(features.shape[1])
