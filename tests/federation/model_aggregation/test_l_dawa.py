"""L-DAWA by hand and in numpy."""

import numpy as np
import pytest

from fedssl.federation.messages import GlobalWeights
from fedssl.federation.model_aggregation.base import joined
from fedssl.federation.model_aggregation.l_dawa import LDAWA
from tests.federation.test_model_aggregation import random_results, random_weights
from tests.helpers.small import of, result, values


def test_by_hand():
    """W_g = (1, 0): (2, 0) counts in full, (0, 3) not at all, (−4, 0) as (4, 0), (3, 4) at 0.6."""
    uploads = [
        result(k, way, (5.0,), 10 + k) for k, way in enumerate([(2.0, 0.0), (0.0, 3.0), (-4.0, 0.0), (3.0, 4.0)])
    ]
    aggregated = LDAWA()(uploads, GlobalWeights(of(1.0, 0.0), of(2.0)))
    assert values(aggregated.encoder) == pytest.approx([(2 + 4 + 0.6 * 3) / 4, 0.6 * 4 / 4])
    assert values(aggregated.predictor) == pytest.approx([5.0])
    assert aggregated.encoder.buffers["bn.running_mean"].item() == pytest.approx(100 * (2 - 4 + 3) / 4)


def test_what_has_no_direction_counts_in_full():
    """Biases start at 0: a cosine with them is none."""
    uploads = [result(0, (1.0, 3.0), (0.0,)), result(1, (3.0, 5.0), (2.0,))]
    aggregated = LDAWA()(uploads, GlobalWeights(of(0.0, 0.0), of(1.0)))
    assert values(aggregated.encoder) == [2.0, 4.0]
    assert values(aggregated.predictor) == [1.0]


def test_against_numpy():
    uploads, previous = random_results(), random_weights(99)
    aggregated, origin = joined(LDAWA()(uploads, previous)), joined(previous)
    sent = [joined(upload.weights) for upload in uploads]
    for name, tensor in aggregated.parameters.items():
        g, ws = origin.parameters[name].double().numpy(), [one.parameters[name].double().numpy() for one in sent]
        cosines = [(g * w).sum() / np.linalg.norm(g) / np.linalg.norm(w) for w in ws]
        expected = sum(cosine * w for cosine, w in zip(cosines, ws, strict=True)) / len(ws)
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-6)
