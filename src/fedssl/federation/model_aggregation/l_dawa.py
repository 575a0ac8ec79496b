"""L-DAWA: each layer of an upload counts for as much as it still points where the global one does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined
from fedssl.federation.model_aggregation.coordinates import slices


@dataclass(frozen=True, kw_only=True)
class LDAWA(Aggregator):
    """Tensor by tensor W_g ← mean_k cos(W_g, W_k) · W_k, n_k ignored; buffers: their mean (Ur Rehman et al., 2023).

    A tensor that is all zeros has no direction and counts in full. Reads every upload once and holds one at a time.
    """

    departs = "BatchNorm statistics and counters are averaged, every client the same"

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        mean = Average(len(results))
        for result in results:
            mean.add(1, _turned(joined(result.weights), previous))
        return mean.weights()


def _turned(upload: Weights, previous: Weights) -> Weights:
    kept = {name: tensor * _cosine(tensor, previous.parameters[name]) for name, tensor in upload.parameters.items()}
    return Weights(kept, upload.buffers)


def _cosine(ours: Tensor, theirs: Tensor) -> float:
    """In float64: the square of a large float32 would be infinite."""
    pairs = [pair.double() for pair in slices([ours, theirs])]
    lengths = [math.hypot(*(float(pair[side].norm()) for pair in pairs)) for side in (0, 1)]
    if not all(lengths):
        return 1.0
    return min(math.fsum(float(pair[0] @ pair[1]) for pair in pairs) / lengths[0] / lengths[1], 1.0)
