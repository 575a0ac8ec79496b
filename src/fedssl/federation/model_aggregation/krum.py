"""Krum and multi-Krum: the uploads that lie nearest to the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedssl.core.settings import Count
from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined, need
from fedssl.federation.model_aggregation.coordinates import by_coordinate, middle, slices


@dataclass(frozen=True, kw_only=True)
class Krum(Aggregator):
    """The `selected` uploads nearest to the others, averaged; tolerates `byzantine` bad ones (Blanchard et al., 2017).

    A client's score is the sum of squared distances to its n − f − 2 nearest others, over the parameters of encoder and
    predictor; of equal scores the lower client id wins; the average is weighted by n_k. Buffers are the median over all
    clients: the score does not see them, so a client chosen for its parameters could poison through them. Reads every
    upload once and needs all of them at the same time (K models, little memory where tensors are mapped from files);
    time grows with K².
    """

    departs = (
        "on weights; distances over parameters; buffers are the median over all clients, for the distance does not "
        "see them; at most n − f `selected`, averaged by n_k; with `selected = 1` the chosen client's divergence "
        "is 0, so its lambda_k is set later"
    )

    byzantine: Count = 1
    selected: Count = 1

    def check(self, num_clients: int) -> None:
        need(2 * self.byzantine + 3, num_clients, f"byzantine = {self.byzantine}")
        # More than n − f: then some of the f would be averaged in for certain.
        need(self.selected + self.byzantine, num_clients, f"selected = {self.selected}")

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:  # noqa: ARG002
        uploads = [joined(result.weights) for result in results]
        scores = self._scores(_squared_distances(uploads))
        chosen = sorted(sorted(range(len(scores)), key=scores.__getitem__)[: self.selected])
        mean = Average(sum(results[k].num_examples for k in chosen))
        for k in chosen:
            mean.add(results[k].num_examples, uploads[k])
        return mean.weights().overlaid(by_coordinate([Weights(buffers=one.buffers) for one in uploads], middle))

    def _scores(self, distances: Tensor) -> list[float]:
        nearest = len(distances) - self.byzantine - 2
        rows = [row[:k] + row[k + 1 :] for k, row in enumerate(distances.tolist())]
        return [sum(sorted(row)[:nearest]) for row in rows]


def _squared_distances(uploads: Sequence[Weights]) -> Tensor:
    """K x K, over the parameters; in float64: the square of a large float32 would be infinite."""
    distances = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for name in uploads[0].parameters:
        for values in slices([upload.parameters[name] for upload in uploads]):
            exact = values.double()
            for k in range(len(uploads) - 1):
                distances[k, k + 1 :] += (exact[k + 1 :] - exact[k]).square().sum(dim=1)
    return distances + distances.T
