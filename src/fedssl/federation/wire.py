"""The wire: in which numbers weights travel, down and up; both sides continue with what arrived.

bf16: every floating-point tensor, rounded to the nearest. int8: weights of two or more dimensions, in blocks of BLOCK
values with one float32 scale each; biases and BatchNorm, a thousandth of the bytes, stay as they are, for a small
variance rounded to 0 would blow up all that comes behind it. Integer counters are never changed.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, Upload

WireDtype = Literal["fp32", "bf16", "int8"]
BLOCK = 128  # values that share a scale, 3 % more bytes; blocks of 64 cost 6 % and err a twelfth less
SCALE = "@scale"  # after a tensor's name: its scales; no module can have such a name
LEVELS = 127  # symmetric: −127 … 127


@dataclass(frozen=True)
class Wire:
    """Turns weights into what travels and back; for fp32 into themselves."""

    dtype: WireDtype = "fp32"

    @property
    def exact(self) -> bool:
        """Whether what travels is what was sent, to the last bit."""
        return self.dtype == "fp32"

    def encode(self, weights: GlobalWeights) -> GlobalWeights:
        """What travels for these weights: tensors that any engine carries, under the same names (and scales).

        Copies, but for fp32: they are stored beside the originals, and files refuse tensors that share memory.
        """
        if self.exact:
            return weights
        encode = _rounded if self.dtype == "bf16" else _in_blocks
        return GlobalWeights(encode(weights.encoder), encode(weights.predictor))

    def decode(self, sent: GlobalWeights, like: GlobalWeights) -> GlobalWeights:
        """What the receiver continues with, in the types of `like`, the model that both sides know."""
        if self.exact:
            return sent
        return GlobalWeights(_decoded(sent.encoder, like.encoder), _decoded(sent.predictor, like.predictor))

    def arrived(self, weights: GlobalWeights) -> GlobalWeights:
        """These weights as the other side sees them."""
        return self.decode(self.encode(weights), weights)

    def open(self, upload: Upload, like: GlobalWeights) -> Upload:
        """An upload that is decoded whenever it is read, and holds nothing until then."""
        return upload if self.exact else _Encoded(self, upload, like)


EXACT = Wire()


@dataclass(frozen=True)
class _Encoded:
    wire: Wire
    upload: Upload
    like: GlobalWeights

    def read(self) -> GlobalWeights:
        return self.wire.decode(self.upload.read(), self.like)

    def num_bytes(self) -> int:
        return self.upload.num_bytes()


def _rounded(weights: Weights) -> Weights:
    return weights.map(lambda _, tensor: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor.clone())


def _in_blocks(weights: Weights) -> Weights:
    sent: dict[str, Tensor] = {}
    for name, tensor in weights.parameters.items():
        if tensor.is_floating_point() and tensor.ndim > 1:
            sent[name], sent[name + SCALE] = quantise(tensor)
        else:
            sent[name] = tensor.clone()
    return Weights(sent, Weights(buffers=weights.buffers).copy().buffers)


def _decoded(sent: Weights, like: Weights) -> Weights:
    known, received = like.tensors(), sent.tensors()

    def decode(name: str, tensor: Tensor) -> Tensor:
        if name + SCALE in received:
            tensor = dequantise(tensor, received[name + SCALE])
        return tensor.to(known[name].dtype)

    return sent.without(frozenset(name for name in received if name.endswith(SCALE))).map(decode)


def quantise(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in the tensor's shape, and the scale of every block: its largest magnitude / 127."""
    blocks = _blocks(tensor.float())  # … x BLOCK
    scale = blocks.abs().amax(dim=1) / LEVELS
    divisor = torch.where(scale > 0, scale, 1.0)  # a block of zeros
    whole = (blocks / divisor[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    return whole.flatten()[: tensor.numel()].reshape(tensor.shape), scale


def dequantise(whole: Tensor, scale: Tensor) -> Tensor:
    return (_blocks(whole.float()) * scale[:, None]).flatten()[: whole.numel()].reshape(whole.shape)


def _blocks(tensor: Tensor) -> Tensor:
    """Row-major, the last block filled up with zeros."""
    return F.pad(tensor.reshape(-1), (0, -tensor.numel() % BLOCK)).reshape(-1, BLOCK)
