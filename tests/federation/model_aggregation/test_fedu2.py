"""FedU²'s aggregator: the shortest combination by hand, against a plain search, and what it does to weights."""

import numpy as np
import pytest

from fedssl.federation.messages import GlobalWeights
from fedssl.federation.model_aggregation.base import joined
from fedssl.federation.model_aggregation.fedu2 import FedU2, shortest
from tests.federation.test_model_aggregation import random_results, random_weights
from tests.helpers.small import of, result, values

ORIGIN = GlobalWeights(of(1.0, 1.0), of(0.0))


def test_two_directions_by_hand():
    """(3, 0) and (0, 4) from (1, 1): unit vectors along the axes, half of each; 3.5 long on average."""
    uploads = [result(0, (4.0, 1.0), (0.0,), 1), result(1, (1.0, 5.0), (0.0,), 3)]
    assert values(FedU2()(uploads, ORIGIN).encoder) == pytest.approx([1 + 3.5 / 2, 1 + 3.5 / 2])
    assert values(FedU2(length=2.0)(uploads, ORIGIN).encoder) == pytest.approx([2.0, 2.0])
    assert FedU2()(uploads, ORIGIN).encoder.buffers["bn.running_mean"].item() == pytest.approx(100 * (4 + 3 * 1) / 4)


def test_opposite_directions_cancel_and_one_alone_is_taken():
    against = [result(0, (3.0, 1.0), (0.0,)), result(1, (0.0, 1.0), (0.0,))]
    assert values(FedU2()(against, ORIGIN).encoder) == pytest.approx([1.0, 1.0])
    assert values(FedU2()(against[:1], ORIGIN).encoder) == pytest.approx([3.0, 1.0])


def test_clients_that_did_not_move_have_no_share():
    still = result(0, (1.0, 1.0), (0.0,))
    assert values(FedU2()([still, still], ORIGIN).encoder) == [1.0, 1.0]
    moved = result(1, (1.0, 3.0), (0.0,))
    assert values(FedU2(length=1.0)([still, moved], ORIGIN).encoder) == pytest.approx([1.0, 2.0])


def by_steps(products, steps=20_000):
    """Frank & Wolfe (1956), with the best step each time: slow and simple."""
    shares = np.full(len(products), 1 / len(products))
    for _ in range(steps):
        way = np.eye(len(shares))[(products @ shares).argmin()] - shares
        curve = way @ products @ way
        shares = shares + (np.clip(-(way @ products @ shares) / curve, 0, 1) * way if curve > 0 else 0)
    return shares


@pytest.mark.parametrize(("clients", "size"), [(1, 3), (2, 3), (5, 2), (5, 40), (12, 4), (30, 6)])
def test_the_combination_is_the_shortest_there_is(clients, size):
    vectors = np.random.default_rng(clients).normal(size=(clients, size)) + 0.8
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    products = vectors @ vectors.T
    shares = shortest(products)
    assert shares.sum() == pytest.approx(1.0)
    assert shares.min() >= 0
    length = shares @ products @ shares
    slow = by_steps(products, 2_000)
    assert length <= slow @ products @ slow + 1e-9
    # No client can be given more of to make it shorter: each direction has at least the length of the shortest.
    assert (products @ shares).min() == pytest.approx(length, abs=1e-9)


def test_equal_directions_count_once():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    shares = shortest(vectors @ vectors.T)
    assert vectors.T @ shares == pytest.approx([0.5, 0.5])


def test_against_numpy():
    uploads, previous = random_results(), random_weights(99)
    aggregated, origin = joined(FedU2()(uploads, previous)), joined(previous)

    def flat(weights):
        return np.concatenate([tensor.double().numpy().ravel() for tensor in weights.parameters.values()])

    updates = np.stack([flat(joined(upload.weights)) - flat(origin) for upload in uploads])
    lengths = np.linalg.norm(updates, axis=1)
    units = updates / lengths[:, None]
    expected = flat(origin) + lengths.mean() * units.T @ by_steps(units @ units.T)
    np.testing.assert_allclose(flat(aggregated), expected, rtol=1e-3, atol=1e-4)
