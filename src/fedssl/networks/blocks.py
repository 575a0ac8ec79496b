"""The blocks of a backbone from its input to its output, found by the names of its parameters; freezing the first."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from fedssl.core.errors import FedsslError

STEMS = ("stem", "patch_embed")  # numbers inside them are no blocks
LISTS = ("blocks", "layers")  # of a numbered stage: stages.2.blocks.5


@dataclass(frozen=True)
class Block:
    """Parameters that stand together: `layer2.0`, `blocks.7`, `features.3`, `conv1` with its norm; first the stem."""

    name: str
    parameters: tuple[str, ...]


def blocks_of(backbone: nn.Module) -> list[Block]:
    """In the order in which the network registers them, which is that of its forward pass in every usual network.

    A parameter outside every numbered module belongs to the block before it (a last norm to the last block), and so
    does a numbered module without a matrix (`bn1` to `conv1`).
    """
    blocks: dict[str, list[str]] = {}
    with_matrices = {_place(name) for name, parameter in backbone.named_parameters() if parameter.ndim > 1}
    place = ""
    for name, _ in backbone.named_parameters():
        if (own := _place(name)) and own in with_matrices:
            place = own
        blocks.setdefault(place, []).append(name)
    return [Block(place or "stem", tuple(names)) for place, names in blocks.items()]


def _place(name: str) -> str:
    """The path of the numbered module that a tensor lies in; "": none."""
    parts = name.split(".")[:-1]
    end = next((number for number, part in enumerate(parts, start=1) if part[-1:].isdigit()), 0)
    if not end or parts[0] in STEMS:
        return ""
    while end < len(parts):
        if parts[end].isdigit():
            end += 1
        elif parts[end] in LISTS and parts[end + 1 : end + 2] and parts[end + 1].isdigit():
            end += 2
        else:
            break
    return ".".join(parts[:end])


def first_blocks(backbone: nn.Module, count: int) -> list[Block]:
    """The blocks that `local_training.freeze` names; FedsslError when nothing would be left to train."""
    blocks = blocks_of(backbone) if count else []
    if count and count >= len(blocks):
        names = ", ".join(block.name for block in blocks)
        raise FedsslError(
            f"local_training.freeze: {count} leaves nothing of the encoder to train, this network has {len(blocks)} "
            f"blocks: {names}"
        )
    return blocks[:count]


def freeze(backbone: nn.Module, count: int) -> None:
    """The first blocks learn no more, and their norms and dropout behave as in evaluation: no statistic moves."""
    for module, parameters in _frozen(backbone, count):
        module.training = False  # not .eval(), which would reach modules below that are not frozen
        for parameter in parameters:
            parameter.requires_grad_(False)


def frozen_names(backbone: nn.Module, count: int) -> frozenset[str]:
    """The parameters and buffers that never change when so many blocks are frozen."""
    modules = {module for module, _ in _frozen(backbone, count)}
    inside = [f"{name}." for name, module in backbone.named_modules() if module in modules]
    buffers = {name for name, _ in backbone.named_buffers() if f"{name.rpartition('.')[0]}." in inside}
    return frozenset(name for block in first_blocks(backbone, count) for name in block.parameters) | buffers


def _frozen(backbone: nn.Module, count: int) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Every module of the first blocks, with those parameters of its own that are frozen."""
    blocks = first_blocks(backbone, count)
    names, places = {name for block in blocks for name in block.parameters}, {block.name for block in blocks}
    for prefix, module in backbone.named_modules():
        path = f"{prefix}." if prefix else ""
        own = [one for name, one in module.named_parameters(recurse=False) if path + name in names]
        if own or _place(path) in places:
            yield module, own
