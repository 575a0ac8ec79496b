"""The baselines: BYOL and FedEMA as they are usually written in PyTorch, and training steps with nothing around them.

The usual way, for clarity and not for speed: images one by one through PIL, a DataLoader in this process, row-major
memory, loops over state dicts, a loss read in every step. The networks are fedssl's: both train the same layers.
"""

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedssl.data.augmentation.recipes import Recipe
from fedssl.methods.byol import BYOL
from fedssl.networks.heads import Encoder, HeadSizes, mlp

StateDict = dict[str, Tensor]
LR, SGD_MOMENTUM, WEIGHT_DECAY, EMA = 0.032, 0.9, 5e-4, 0.99


# --- augmentation, image by image ------------------------------------------------------------------------------------


def augment_image(image: Image.Image, recipe: Recipe) -> Image.Image:
    """The recipe on one PIL image: torchvision's transforms written out, every number drawn from torch as there."""
    left, top, width, height = draw_crop(*image.size, recipe)
    size = image.size
    image = image.crop((left, top, left + width, top + height)).resize(size, Image.Resampling.BILINEAR)
    if torch.rand(1) < recipe.flip:
        image = ImageOps.mirror(image)
    if torch.rand(1) < recipe.jitter:
        strengths = (recipe.brightness, recipe.contrast, recipe.saturation)
        factors = [uniform(max(0, 1 - x), 1 + x) for x in strengths]
        turn = uniform(-recipe.hue, recipe.hue)
        for number in torch.randperm(4):
            if number == 3:
                image = turn_hue(image, turn)
            else:
                enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[number]
                image = enhance(image).enhance(factors[number])
    return image.convert("L").convert("RGB") if torch.rand(1) < recipe.grey else image


def uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


def draw_crop(full_width: int, full_height: int, recipe: Recipe) -> tuple[int, int, int, int]:
    ratios = torch.log(torch.tensor((recipe.crop_ratio_min, recipe.crop_ratio_max)))
    for _ in range(10):
        area = full_width * full_height * uniform(recipe.crop_scale_min, recipe.crop_scale_max)
        ratio = math.exp(uniform(ratios[0].item(), ratios[1].item()))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            top = torch.randint(0, full_height - height + 1, (1,)).item()
            left = torch.randint(0, full_width - width + 1, (1,)).item()
            return int(left), int(top), width, height
    return 0, 0, full_width, full_height


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.array(turn * 255).astype(np.int16).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each uint8 image."""

    def __init__(self, pixels: Tensor, recipe: Recipe) -> None:
        self.images = [Image.fromarray(array) for array in pixels.permute(0, 2, 3, 1).contiguous().numpy()]
        self.recipe = recipe

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return to_tensor(augment_image(image, self.recipe)), to_tensor(augment_image(image, self.recipe))


# --- BYOL ------------------------------------------------------------------------------------------------------------


class PlainBYOL(nn.Module):
    """Online encoder, predictor and a target encoder that follows by EMA."""

    def __init__(self, backbone: nn.Module, feature_size: int, heads: HeadSizes) -> None:
        super().__init__()
        self.online = Encoder(backbone, mlp(feature_size, heads))
        self.predictor = mlp(heads.out, heads)
        self.target = copy.deepcopy(self.online)
        for parameter in self.target.parameters():
            parameter.requires_grad = False

    def forward(self, view_1: Tensor, view_2: Tensor) -> Tensor:
        p1, p2 = self.predictor(self.online(view_1)), self.predictor(self.online(view_2))
        with torch.no_grad():
            z1, z2 = self.target(view_1), self.target(view_2)
        return (4 - 2 * F.cosine_similarity(p1, z2) - 2 * F.cosine_similarity(p2, z1)).mean()

    @torch.no_grad()
    def move_target(self, momentum: float) -> None:
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.data = momentum * target.data + (1 - momentum) * online.data


def train(model: PlainBYOL, pixels: Tensor, batch_size: int, epochs: int, recipe: Recipe, lr: float = LR) -> float:
    """Local training; returns the mean loss."""
    loader = DataLoader(TwoViews(pixels, recipe), batch_size, shuffle=True, drop_last=True, num_workers=0)
    trained = [*model.online.parameters(), *model.predictor.parameters()]
    optimizer = torch.optim.SGD(trained, lr=lr, momentum=SGD_MOMENTUM, weight_decay=WEIGHT_DECAY)
    losses = []
    model.train()
    for _ in range(epochs):
        for view_1, view_2 in loader:
            loss = model(view_1, view_2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.move_target(EMA)
            losses.append(loss.item())
    return sum(losses) / len(losses)


# --- FedEMA ----------------------------------------------------------------------------------------------------------


@dataclass
class PlainClient:
    pixels: Tensor
    model: PlainBYOL
    scale: float | None = None  # lambda_k, set after the first round


def average(states: list[StateDict], counts: list[int]) -> StateDict:
    """The weighted mean of state dicts, name by name."""
    mean = {}
    for name in states[0]:
        total = sum(count * state[name] for state, count in zip(states, counts, strict=True))
        mean[name] = (total / sum(counts)).to(states[0][name].dtype)
    return mean


def divergence(a: nn.Module, b: nn.Module) -> float:
    squares = [((x - y) ** 2).sum().item() for x, y in zip(a.parameters(), b.parameters(), strict=True)]
    return math.sqrt(sum(squares))


def mix(local: StateDict, server: StateDict, mu: float) -> StateDict:
    return {name: (mu * local[name] + (1 - mu) * server[name]).to(local[name].dtype) for name in local}


@torch.no_grad()
def start_round(client: PlainClient, server: PlainBYOL) -> None:
    """mu W_k + (1 − mu) W_g, the same for the predictor; everything from the server in the first round."""
    if client.scale is None:
        client.model.load_state_dict(server.state_dict())
        return
    mu = min(client.scale * divergence(server.online, client.model.online), 1.0)
    for part in ("online", "predictor"):
        ours, theirs = getattr(client.model, part), getattr(server, part)
        ours.load_state_dict(mix(ours.state_dict(), theirs.state_dict(), mu))


def run_round(
    server: PlainBYOL, clients: list[PlainClient], batch_size: int, epochs: int, recipe: Recipe, tau: float = 0.7
) -> None:
    """One round of FedEMA with the autoscaler, all clients in turn."""
    for client in clients:
        start_round(client, server)
        train(client.model, client.pixels, batch_size, epochs, recipe)
    counts = [len(client.pixels) for client in clients]
    for part in ("online", "predictor"):
        states = [getattr(client.model, part).state_dict() for client in clients]
        getattr(server, part).load_state_dict(average(states, counts))
    for client in clients:
        distance = divergence(server.online, client.model.online)
        if client.scale is None and distance > 0:
            client.scale = tau / distance


# --- the limit -------------------------------------------------------------------------------------------------------


def bare_steps(method: BYOL, views: list[Tensor], count: int) -> None:
    """Training steps alone, on views that are already in memory: what no training loop can be faster than."""
    optimizer = torch.optim.SGD(
        method.trained_parameters(), lr=LR, momentum=SGD_MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )
    method.train()
    for _ in range(count):
        loss = method.loss(views)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        method.move_target(EMA)
