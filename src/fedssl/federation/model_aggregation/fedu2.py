"""FedU²'s aggregator: the shortest combination of the clients' directions, a step that goes against none of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedssl.core.settings import Positive
from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import TrainResult
from fedssl.federation.model_aggregation.base import Aggregator, joined
from fedssl.federation.model_aggregation.coordinates import slices

Matrix = np.ndarray[Any, np.dtype[np.float64]]
TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class FedU2(Aggregator):
    """W_g + length · sum_k c_k u_k: u_k = W_k − W_g at length 1, c the shares of the shortest sum (Liao et al., 2024).

    length: by default the mean length of the clients' own updates. One set of shares for encoder and predictor; who did
    not move has no direction and no share. Buffers: the average by n_k. Reads every upload once and needs all of them
    at the same time (K models, little memory where tensors are mapped from files); time grows with K².
    """

    departs = (
        "the step is as long as the clients' updates on average (`aggregation.length`), theirs is 2 whatever the "
        "network; its uniformity term is the sliced Wasserstein distance of projections to samples of the sphere, "
        "50 directions, the mean over views, theirs works in tangent spaces"
    )

    length: Positive | None = None

    def combine(self, results: Sequence[TrainResult], previous: Weights) -> Weights:
        uploads = [joined(result.weights) for result in results]
        products = _products(uploads, previous)
        lengths = np.sqrt(products.diagonal())
        moved = np.flatnonzero(lengths > 0)
        shares = np.zeros(len(uploads))
        if len(moved):
            units = products[np.ix_(moved, moved)] / np.outer(lengths[moved], lengths[moved])
            length = lengths.mean() if self.length is None else self.length
            shares[moved] = length * shortest(units) / lengths[moved]
        total, buffers = Average(1.0), Average(sum(result.num_examples for result in results))
        total.add(1 - float(shares.sum()), Weights(previous.parameters))
        for result, upload, share in zip(results, uploads, shares, strict=True):
            total.add(float(share), Weights(upload.parameters))
            buffers.add(result.num_examples, Weights(buffers=upload.buffers))
        return total.weights().overlaid(buffers.weights())


def _products(uploads: Sequence[Weights], previous: Weights) -> Matrix:
    """(W_i − W_g) · (W_j − W_g) for all clients i, j, over the parameters; in float64, as large ones are squared."""
    products = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for name, origin in previous.parameters.items():
        for values in slices([origin, *(upload.parameters[name] for upload in uploads)]):
            updates = values[1:].double() - values[0].double()  # K x …
            products += updates @ updates.T
    return products.numpy()


def shortest(products: Matrix) -> Matrix:
    """The shares c ≥ 0 of sum 1 with the least c · products · c.

    That is the direction of min ‖Uc‖² + (sum c − 1)², c ≥ 0, which an active set finds (Lawson & Hanson, 1974).
    """
    matrix, shares = products + 1, np.zeros(len(products))
    chosen: list[int] = []
    while len(chosen) < len(products):
        missing = 1 - matrix @ shares
        missing[chosen] = -np.inf
        if missing.max() <= TOLERANCE:
            break
        chosen.append(int(missing.argmax()))
        while (wanted := _solved(matrix[np.ix_(chosen, chosen)])).min() <= 0:
            now, low = shares[chosen], wanted <= 0
            by = (now[low] / (now[low] - wanted[low])).min()  # as far as the first of them comes to 0
            shares[chosen] = now + by * (wanted - now)
            chosen = [k for k in chosen if shares[k] > TOLERANCE]
            shares[[k for k in range(len(shares)) if k not in chosen]] = 0
        shares[chosen] = wanted
    return shares / shares.sum()  # type: ignore[no-any-return]


def _solved(matrix: Matrix) -> Matrix:
    """matrix · c = 1, also where two clients have the same direction."""
    return np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)[0].astype(np.float64)
