"""Updates as whole numbers of a step: by hand, exact in the sum, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedssl.core.errors import FedsslError, RoundError
from fedssl.core.weights import Average, Weights
from fedssl.federation.messages import ClientError
from fedssl.federation.secure import fixed_point
from fedssl.federation.secure.fixed_point import LARGEST, decode, encode, layout_of
from tests.helpers.secure_parties import average_error

ORIGIN = Weights(
    {"fc.weight": torch.tensor([[1.0, -2.0], [0.5, 3.0]])},
    {"bn.running_mean": torch.tensor([10.0]), "bn.num_batches_tracked": torch.tensor(7)},
)


def small_layout(clients=2, most_examples=100, **sums):
    return layout_of(ORIGIN, clients, most_examples, limit=4.0, statistics_limit=64.0, sums=sums)


def trained(update, mean=10.0):
    return Weights(
        {"fc.weight": ORIGIN.parameters["fc.weight"] + torch.tensor(update).reshape(2, 2)},
        {"bn.running_mean": torch.tensor([mean]), "bn.num_batches_tracked": torch.tensor(12345)},
    )


def added(vectors):
    return sum(vectors[1:], vectors[0].copy())


def test_a_vector_by_hand():
    layout = small_layout(loss=8.0)
    step = 4.0 / (LARGEST // 2)
    assert layout.levels == LARGEST // 2
    assert [layout.step(entry) for entry in layout.tensors] == [step, 64.0 / layout.levels]
    vector = encode(layout, trained([1.0, -1.0, 0.0, 4.0], mean=12.0), ORIGIN, 50, {"loss": 2.0})
    half = 0.5 / step  # n_k is half of n_max
    expected = [
        round(half),
        -round(half),
        0,
        round(4 * half),
        round(1.0 * layout.levels / 64),
        50,
        round(layout.levels / 4),
    ]
    assert vector.view(np.int32).tolist() == expected
    assert layout.length == len(expected), "the integer counter is no part of it"


def test_the_sum_says_the_weighted_average_and_the_counter_stays():
    layout = small_layout(loss=800.0)
    one = encode(layout, trained([1.0, -1.0, 0.0, 4.0], mean=12.0), ORIGIN, 50, {"loss": 2.0 * 50})
    two = encode(layout, trained([-1.0, -1.0, 0.5, 0.0], mean=6.0), ORIGIN, 100, {"loss": 1.0 * 100})
    total = decode(layout, one + two, ORIGIN)
    assert total.num_examples == 150
    assert total.sums == {"loss": pytest.approx(200.0, abs=2 * 800 / layout.levels)}
    moved = total.weights.parameters["fc.weight"] - ORIGIN.parameters["fc.weight"]
    torch.testing.assert_close(moved, torch.tensor([[-1 / 3, -1.0], [1 / 3, 4 / 3]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(total.weights.buffers["bn.running_mean"], torch.tensor([8.0]), atol=1e-6, rtol=0)
    assert total.weights.buffers["bn.num_batches_tracked"] == 7


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_sum_of_the_vectors_is_exact(data):
    """As whole numbers in Python, which never wrap; the average is off by no more than is stated."""
    clients = data.draw(st.integers(2, 20))
    most = data.draw(st.integers(1, LARGEST // clients))
    layout = layout_of(Weights({"w": torch.zeros(3)}), clients, most, limit=4.0, statistics_limit=1.0)
    value = st.one_of(st.floats(-4.0, 4.0, width=32), st.sampled_from([-4.0, 4.0, 0.0]))
    rows = data.draw(st.lists(st.lists(value, min_size=3, max_size=3), min_size=1, max_size=clients))
    examples = [data.draw(st.integers(1, most)) for _ in rows]
    origin = Weights({"w": torch.zeros(3, dtype=torch.float64)})
    uploads = [Weights({"w": torch.tensor(row, dtype=torch.float64)}) for row in rows]
    vectors = [encode(layout, upload, origin, n, {}) for upload, n in zip(uploads, examples, strict=True)]
    exact = [sum(int(v) for v in column) for column in zip(*(v.view(np.int32).tolist() for v in vectors), strict=True)]
    summed = added(vectors)
    assert summed.view(np.int32).tolist() == exact
    total = decode(layout, summed, origin)
    assert total.num_examples == sum(examples)
    error = average_error(layout, layout.tensors[0], sum(examples))
    for column, found in zip(zip(*rows, strict=True), total.weights.parameters["w"].tolist(), strict=True):
        average = math.fsum(n * x for n, x in zip(examples, column, strict=True)) / sum(examples)
        assert abs(found - average) <= error * (1 + 1e-9) + 1e-12


def test_clients_at_their_limits_do_not_wrap():
    for clients in range(2, 21):
        layout = small_layout(clients=clients)
        vectors = [encode(layout, trained([4.0, -4.0, 4.0, -4.0]), ORIGIN, 100, {})] * clients
        moved = decode(layout, added(vectors), ORIGIN).weights.parameters["fc.weight"] - ORIGIN.parameters["fc.weight"]
        assert moved.flatten().tolist() == [4.0, -4.0, 4.0, -4.0]


def test_large_tensors_go_piece_by_piece(monkeypatch):
    """Pieces that do not divide a tensor give the same as one piece: the weighted average within the step."""
    draw = torch.Generator().manual_seed(0)
    origin = Weights({"w": torch.randn(11, 13, generator=draw), "v": torch.randn(7, generator=draw)})
    layout = layout_of(origin, 3, 60, limit=8.0, statistics_limit=1.0)
    uploads = [origin.map(lambda _, t: t + torch.randn(t.shape, generator=draw)) for _ in range(3)]
    whole = [encode(layout, one, origin, 20 * (k + 1), {}) for k, one in enumerate(uploads)]
    plain = Average(120)
    for k, one in enumerate(uploads):
        plain.add(20 * (k + 1), one)
    monkeypatch.setattr(fixed_point, "AT_ONCE", 10)
    assert all((encode(layout, one, origin, 20 * (k + 1), {}) == whole[k]).all() for k, one in enumerate(uploads))
    total = decode(layout, added(whole), origin)
    for name, tensor in plain.weights().parameters.items():
        assert total.weights.parameters[name].shape == tensor.shape
        error = average_error(layout, layout.tensors[0], 120) + 1e-6  # float32 rounds both
        assert float((total.weights.parameters[name] - tensor).abs().max()) <= error


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(bad):
    with pytest.raises(ClientError, match=r"^fc\.weight: NaN or infinite") as caught:
        encode(small_layout(), trained([0.0, bad, 0.0, 0.0]), ORIGIN, 10, {})
    assert caught.value.code == "non-finite"
    with pytest.raises(ClientError, match=r"^loss: NaN or infinite"):
        encode(small_layout(loss=1.0), trained([0.0] * 4), ORIGIN, 10, {"loss": bad})


def test_what_is_beyond_its_limit_is_refused_by_name():
    layout = small_layout(loss=1.0)
    with pytest.raises(ClientError, match=r"^fc\.weight: 4\.5 is beyond 4, the limit") as caught:
        encode(layout, trained([0.0, -4.5, 0.0, 0.0]), ORIGIN, 100, {"loss": 0.0})
    assert caught.value.code == "refused"
    with pytest.raises(ClientError, match=r"^bn\.running_mean: 90 is beyond 64"):
        encode(layout, trained([0.0] * 4, mean=100.0), ORIGIN, 100, {"loss": 0.0})
    with pytest.raises(ClientError, match=r"^loss: 1\.1 is beyond 1"):
        encode(layout, trained([0.0] * 4), ORIGIN, 100, {"loss": -1.1})
    with pytest.raises(ClientError, match=r"^loss: .* is beyond 1"):
        encode(layout, trained([0.0] * 4), ORIGIN, 100, {"loss": 1e300})
    for examples in (0, -1, 101):
        with pytest.raises(ClientError, match=f"num_examples: {examples} images"):
            encode(layout, trained([0.0] * 4), ORIGIN, examples, {"loss": 0.0})


def test_layouts_and_sums_that_cannot_be():
    with pytest.raises(FedsslError, match="2 or more clients"):
        small_layout(clients=1)
    with pytest.raises(FedsslError, match="may be 2147483647 at most"):
        small_layout(clients=20, most_examples=LARGEST // 20 + 1)
    for limit in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(FedsslError, match="the limit of loss"):
            small_layout(loss=limit)
    layout = small_layout()
    with pytest.raises(FedsslError, match="a sum of 3 values, expected 6"):
        decode(layout, np.zeros(3, np.uint32), ORIGIN)
    with pytest.raises(RoundError, match="add up to 0"):
        decode(layout, np.zeros(layout.length, np.uint32), ORIGIN)
