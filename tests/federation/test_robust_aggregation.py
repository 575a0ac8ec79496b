"""The robust aggregators by hand, by property, and against one client that sends rubbish."""

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.errors import RoundError
from fedssl.core.weights import Weights, divergence, non_finite
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation import coordinates
from fedssl.federation.model_aggregation.clipped_average import ClippedAverage
from fedssl.federation.model_aggregation.krum import Krum
from fedssl.federation.model_aggregation.median import Median
from fedssl.federation.model_aggregation.trimmed_mean import TrimmedMean
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from tests.helpers.small import run

ROBUST = {
    "clipped-average": ClippedAverage(),
    "median": Median(),
    "trimmed-mean": TrimmedMean(),
    "krum": Krum(),
    "multi-krum": Krum(selected=3),
}


def weights(encoder, predictor=(), mean=(0.0,), var=(1.0,), counter=0, dtype=torch.float32):
    buffers = {
        "bn.num_batches_tracked": torch.tensor(counter),
        "bn.running_mean": torch.tensor(mean, dtype=dtype),
        "bn.running_var": torch.tensor(var, dtype=dtype),
    }
    parameters = {"w": torch.tensor(encoder, dtype=dtype)}
    return GlobalWeights(Weights(parameters, buffers), Weights({"p": torch.tensor(predictor, dtype=dtype)}))


def results(*uploads, n=None):
    return [TrainResult(k, 1, upload, num_examples=10 if n is None else n[k]) for k, upload in enumerate(uploads)]


def encoder(aggregated):
    return aggregated.encoder.parameters["w"].tolist()


def buffer(aggregated, name):
    return aggregated.encoder.buffers[f"bn.{name}"]


# --- clipped average --------------------------------------------------------------------------------------------------


def test_clipped_average_by_hand_one_norm_over_encoder_and_predictor():
    previous = weights([1.0], [1.0])
    uploads = results(weights([4.0], [5.0]), weights([1.0], [1.0]), n=[1, 3])  # the update (3, 4) has length 5
    aggregated = ClippedAverage(max_norm=2.5)(uploads, previous)
    assert encoder(aggregated) == [1.375]  # 1 + 1/4 · 3/2
    assert aggregated.predictor.parameters["p"].tolist() == [1.5]  # 1 + 1/4 · 4/2


def test_a_length_whose_square_no_float32_can_hold():
    aggregated = ClippedAverage(max_norm=5.0)(results(weights([1.5e38, -2e38])), weights([0.0, 0.0]))
    assert encoder(aggregated) == pytest.approx([3.0, -4.0])


def test_without_a_bound_the_median_length_is_it():
    uploads = results(weights([1.0]), weights([-2.0]), weights([3000.0]))  # lengths 1, 2, 3000
    assert encoder(ClippedAverage()(uploads, weights([0.0]))) == pytest.approx([(1 - 2 + 2) / 3])
    uploads = results(weights([1.0]), weights([2.0]), weights([4.0]), weights([3000.0]))  # the bound is 3
    assert encoder(ClippedAverage()(uploads, weights([0.0]))) == pytest.approx([(1 + 2 + 3 + 3) / 4])


def test_what_is_not_too_long_is_averaged_as_ever_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    uploads = results(*(weights(torch.randn(50, generator=generator).tolist()) for _ in range(5)), n=[3, 1, 4, 1, 5])
    previous = weights(torch.randn(50, generator=generator).tolist())
    clipped, plain = ClippedAverage(max_norm=1e3)(uploads, previous), WeightedAverage()(uploads, previous)
    assert clipped.encoder.digest() == plain.encoder.digest()


def test_statistics_are_clipped_apart_from_parameters_at_the_median_of_their_own_lengths():
    previous = weights([0.0], mean=[0.0], var=[1.0])
    uploads = results(
        weights([1.0], mean=[0.3], var=[1.0]),
        weights([1.0], mean=[0.3], var=[1.0]),
        weights([1.0], mean=[0.0], var=[1e9]),  # parameters as everyone's
    )
    aggregated = ClippedAverage(max_norm=10.0)(uploads, previous)
    assert encoder(aggregated) == [1.0]
    assert buffer(aggregated, "running_mean").tolist() == pytest.approx([0.2])
    assert buffer(aggregated, "running_var").tolist() == pytest.approx([1.1])  # 1 + 1/3 · 0.3


def test_a_variance_is_never_pushed_below_zero():
    previous = weights([0.0], mean=[0.0], var=[0.01])
    honest = weights([1.0], mean=[3.0], var=[0.01])
    aggregated = ClippedAverage()(results(honest, honest, weights([1.0], mean=[0.0], var=[-1e9])), previous)
    assert buffer(aggregated, "running_var").tolist() == [0.0]  # 0.01 − 1/3 · 3 without the floor
    assert buffer(aggregated, "running_mean").tolist() == pytest.approx([2.0])


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("counter", [10**9, -(10**9), 2**62, 0])
def test_one_clients_counter_does_not_matter(name, counter):
    uploads = [weights([1.0], counter=c) for c in (7, 7, 8, 9, 9)]
    uploads[0] = weights([1.0], counter=counter)
    found = buffer(ROBUST[name](results(*uploads, n=[10**6, 1, 1, 1, 1]), weights([1.0])), "num_batches_tracked")
    assert found.dtype == torch.int64
    assert 7 <= found.item() <= 9


@pytest.mark.parametrize("huge", [3e38, -3e38])
@pytest.mark.parametrize("name", ROBUST)
def test_the_largest_float32_does_not_overflow(name, huge):
    uploads = [weights([1.0 + k] * 3, [1.0]) for k in range(5)]
    uploads[1] = weights([huge] * 3, [-huge], mean=[huge], var=[abs(huge)])
    aggregated = ROBUST[name](results(*uploads), weights([0.0] * 3, [0.0]))
    assert all(abs(value) < 10 for value in encoder(aggregated)), "neither infinite nor moved far"
    assert not [*non_finite(aggregated.encoder), *non_finite(aggregated.predictor)]


@pytest.mark.parametrize("huge", [1e200, 1.7e308])
@pytest.mark.parametrize("name", ROBUST)
def test_float64_beyond_measure_counts_as_no_update(name, huge):
    uploads = [weights([1.0 + k] * 3, dtype=torch.float64) for k in range(5)]
    uploads[1] = weights([huge] * 3, mean=[-huge], dtype=torch.float64)
    aggregated = ROBUST[name](results(*uploads), weights([-1.0] * 3, mean=[0.0], dtype=torch.float64))
    assert all(abs(value) < 10 for value in encoder(aggregated))
    assert not list(non_finite(aggregated.encoder))


# --- median and trimmed mean ------------------------------------------------------------------------------------------


def test_median_by_hand_odd_even_and_with_n_k_ignored():
    odd = results(weights([1.0, 9.0]), weights([3.0, 7.0]), weights([100.0, -100.0]), n=[1, 1, 10**6])
    assert encoder(Median()(odd, weights([0.0, 0.0]))) == [3.0, 7.0]
    even = results(*(weights([value], counter=count) for value, count in ((1.0, 7), (2.0, 9), (5.0, 7), (80.0, 8))))
    aggregated = Median()(even, weights([0.0]))
    assert encoder(aggregated) == [3.5]
    assert buffer(aggregated, "num_batches_tracked").item() == 8  # 7.5, rounded to even
    assert encoder(Median()(results(weights([3e38]), weights([3.2e38])), weights([0.0]))) == pytest.approx([3.1e38])


def test_trimmed_mean_by_hand():
    uploads = results(
        *(
            weights([value], counter=count)
            for value, count in ((1.0, 10**9), (-50.0, 7), (2.0, 9), (6.0, 8), (80.0, 7))
        ),
        n=[10**6, 1, 1, 1, 1],
    )
    aggregated = TrimmedMean()(uploads, weights([0.0]))
    assert encoder(aggregated) == [3.0]  # of 1, 2, 6
    assert buffer(aggregated, "num_batches_tracked").item() == 8  # of 7, 8, 9
    assert encoder(TrimmedMean(trim=2)(uploads, weights([0.0]))) == [2.0]


MATRICES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(5, 9), st.integers(1, 6)),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


@given(matrix=MATRICES, order=st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_replies_does_not_matter(name, matrix, order):
    uploads = results(*(weights(row.tolist(), row[:2].tolist()) for row in matrix))
    expected = ROBUST[name](uploads, weights([0.5] * matrix.shape[1], [0.5] * min(matrix.shape[1], 2)))
    order.shuffle(uploads)
    found = ROBUST[name](uploads, weights([0.5] * matrix.shape[1], [0.5] * min(matrix.shape[1], 2)))
    assert (found.encoder.digest(), found.predictor.digest()) == (
        expected.encoder.digest(),
        expected.predictor.digest(),
    )


@given(matrix=MATRICES)
def test_median_and_trimmed_mean_are_numpys_and_lie_between_the_values(matrix):
    uploads, previous = results(*map(weights, matrix.tolist())), weights([0.0] * matrix.shape[1])
    exact = np.sort(matrix.astype(np.float64), axis=0)
    for aggregate, expected, low, high in (
        (Median(), np.median(exact, axis=0), exact[0], exact[-1]),
        (TrimmedMean(), exact[1:-1].mean(axis=0), exact[1], exact[-2]),
        (TrimmedMean(trim=2), exact[2:-2].mean(axis=0), exact[2], exact[-3]),
    ):
        found = np.array(encoder(aggregate(uploads, previous)))
        np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6, atol=1e-30)
        assert (low <= found).all()
        assert (found <= high).all()


@given(row=arrays.arrays(np.float64, 4, elements=st.floats(-1e300, 1e300)), clients=st.integers(5, 9))
@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum"])
def test_clients_that_agree_give_exactly_their_value(name, row, clients):
    agreed = weights(row.tolist(), dtype=torch.float64, counter=12345)
    aggregated = ROBUST[name](results(*[agreed] * clients), weights([0.0] * 4, dtype=torch.float64))
    assert encoder(aggregated) == row.tolist()
    assert buffer(aggregated, "num_batches_tracked").item() == 12345


@given(matrix=MATRICES, bound=st.floats(1e-3, 1e3))
def test_no_client_moves_a_clipped_average_further_than_the_bound(matrix, bound):
    previous = weights([0.0] * matrix.shape[1])
    aggregated = ClippedAverage(max_norm=bound)(results(*map(weights, matrix.tolist())), previous)
    assert divergence(aggregated.encoder, previous.encoder, "l2") <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", ROBUST)
def test_large_tensors_are_worked_on_in_slices(name, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    uploads = results(*(weights(torch.randn(101, generator=generator).tolist()) for _ in range(7)))
    whole = ROBUST[name](uploads, weights([0.0] * 101))
    monkeypatch.setattr(coordinates, "VALUES_AT_ONCE", 70)  # ten values of each client, the last slice has one
    assert ROBUST[name](uploads, weights([0.0] * 101)).encoder.digest() == whole.encoder.digest()


# --- krum -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_krum_tells_distances_apart_whose_square_no_float32_can_hold(scale):
    uploads = results(*(weights([value * scale]) for value in (0.0, 1.0, 3.0, 1000.0, -3.0)))
    assert encoder(Krum()(uploads, weights([0.0]))) == pytest.approx([scale])


def test_krum_by_hand():
    """n = 5, f = 1: squared distances to the two nearest. 0: 1+9, 1: 1+4, 2: 4+9, 3: far, 4: 9+16."""
    uploads = results(*(weights([value]) for value in (0.0, 1.0, 3.0, 1000.0, -3.0)))
    assert encoder(Krum()(uploads, weights([0.0]))) == [1.0]
    best_two = Krum(selected=2)(results(*(one.weights for one in uploads), n=[3, 1, 1, 1, 1]), weights([0.0]))
    assert encoder(best_two) == [0.25]  # (3 · 0 + 1 · 1) / 4
    assert encoder(Krum(selected=3)(uploads, weights([0.0]))) == pytest.approx([4 / 3])


def test_krum_looks_at_the_predictor_too():
    """The encoders say client 0 (in the middle), but its predictor is far from everyone's."""
    predictors = (50.0, 0.0, 0.1, 0.2, 0.3)
    uploads = results(*(weights([v], [p]) for v, p in zip((0.0, 0.1, -0.1, 0.2, -0.2), predictors, strict=True)))
    aggregated = Krum()(uploads, weights([0.0], [0.0]))
    assert aggregated.predictor.parameters["p"].item() in [torch.tensor(p).item() for p in predictors[1:]]
    encoders_alone = results(*(weights([v]) for v in (0.0, 0.1, -0.1, 0.2, -0.2)))
    assert encoder(Krum()(encoders_alone, weights([0.0]))) == [0.0]


def test_krum_gives_equal_scores_to_the_lower_client():
    uploads = results(*(weights([value]) for value in (-1.0, 1.0, -1.0, 1.0, 50.0)))  # 0 … 3 have the same score
    assert encoder(Krum()(uploads, weights([0.0]))) == [-1.0]
    assert encoder(Krum()(uploads[::-1], weights([0.0]))) == [-1.0]


def test_krum_takes_buffers_from_all_clients_since_the_score_does_not_see_them():
    uploads = [weights([value], var=[value]) for value in (1.0, 5.0, 2.5, 8.0, 3.0)]
    uploads[2] = weights([2.5], var=[1e9], counter=10**9)  # the one that is chosen
    aggregated = Krum()(results(*uploads), weights([0.0]))
    assert encoder(aggregated) == [2.5]
    assert buffer(aggregated, "running_var").tolist() == [5.0]  # of 1, 3, 5, 8, 1e9
    assert buffer(aggregated, "num_batches_tracked").item() == 0


# --- one client that sends rubbish ------------------------------------------------------------------------------------

POISONS = {
    "x1000": lambda tensor: tensor * 1000,
    "sign-flipped": lambda tensor: tensor * -10,
    "constant": lambda tensor: torch.full_like(tensor, 100),
}


def poisoned(result, poison):
    weights = result.weights
    sent = GlobalWeights(*(part.map(lambda _, t: POISONS[poison](t)) for part in (weights.encoder, weights.predictor)))
    return TrainResult(
        result.client_id, result.round_number, sent, num_examples=result.num_examples, scalars=result.scalars
    )


def honest_round(clients, seed=0):
    """Every client moves by a step in common and one of its own, of the same length."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count, scale=1.0):
        return scale * torch.randn(count, generator=generator)

    start, predictor, common = draw(300), draw(60), draw(300, 0.1)
    var = draw(20).abs() + 0.5
    previous = weights(start.tolist(), predictor.tolist(), [0.0] * 20, var.tolist(), counter=100)
    uploads = [
        weights(
            (start + common + draw(300, 0.1)).tolist(),
            (predictor + draw(60, 0.1)).tolist(),
            draw(20, 0.1).tolist(),
            (var + draw(20, 0.1)).abs().tolist(),
            counter=110 + k,
        )
        for k in range(clients)
    ]
    return previous, results(*uploads, n=[20 + 3 * k for k in range(clients)])


def gap(a, b):
    """How far two aggregates are apart: parameters, floating buffers."""
    parameters = math.hypot(divergence(a.encoder, b.encoder, "l2"), divergence(a.predictor, b.predictor, "l2"))
    names = ("running_mean", "running_var")
    return parameters, math.hypot(*(float((buffer(a, name) - buffer(b, name)).norm()) for name in names))


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("clients", range(5, 12))
def test_one_poisoned_client_ruins_the_mean_and_no_robust_aggregate(clients, poison):
    previous, honest = honest_round(clients, seed=clients)
    clean = WeightedAverage()(honest, previous)
    # The yardstick: how far the honest clients themselves are from their average.
    spread, buffer_spread = (max(distance) for distance in zip(*(gap(h.weights, clean) for h in honest), strict=True))
    for bad in (0, clients // 2, clients - 1):
        uploads = [poisoned(one, poison) if one.client_id == bad else one for one in honest]
        ruined, ruined_buffers = gap(WeightedAverage()(uploads, previous), clean)
        assert ruined > 5 * spread
        assert ruined_buffers > 3 * buffer_spread
        for name, aggregate in ROBUST.items():
            found = aggregate(uploads, previous)
            parameters, buffers = gap(found, clean)
            assert parameters <= spread, (name, bad)
            assert buffers <= buffer_spread, (name, bad)
            assert 110 <= buffer(found, "num_batches_tracked").item() < 110 + clients, (name, bad)


@pytest.mark.parametrize("aggregate", [TrimmedMean(trim=3), Krum(byzantine=3), Median(), ClippedAverage()])
def test_three_poisoned_clients_of_eleven(aggregate):
    previous, honest = honest_round(11)
    clean = WeightedAverage()(honest, previous)
    spread = max(gap(one.weights, clean)[0] for one in honest)
    bad = {1: "x1000", 4: "sign-flipped", 9: "constant"}
    uploads = [poisoned(one, bad[one.client_id]) if one.client_id in bad else one for one in honest]
    assert gap(WeightedAverage()(uploads, previous), clean)[0] > 5 * spread
    assert gap(aggregate(uploads, previous), clean)[0] <= spread


class PoisonedUploads(InProcessEngine):
    """Client 2 trains as it should and sends 1000 times its weights, in every round."""

    def run_tasks(self, tasks):
        for result in super().run_tasks(tasks):
            bad = isinstance(result, TrainResult) and result.client_id == 2
            yield poisoned(result, "x1000") if bad else result


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory):
    return run(tmp_path_factory.mktemp("clean"), "replace", clients=5, rounds=4)[0]


def losses(outcomes):
    return [sum(result.scalars["loss"] for result in outcome.results) / 5 for outcome in outcomes]


def length(outcome):
    encoder = outcome.state.global_weights.encoder
    return divergence(encoder, encoder.map(lambda _, tensor: torch.zeros_like(tensor)), "l2")


def test_end_to_end_the_mean_explodes_and_stops_learning(tmp_path, clean_run):
    outcomes, _ = run(tmp_path / "a", "replace", clients=5, rounds=3, engine=PoisonedUploads)
    assert length(outcomes[-1]) > 1e6 * length(clean_run[2])
    assert losses(outcomes)[-1] > losses(clean_run)[2] + 1
    with pytest.raises(RoundError, match=r"round 4: .* became NaN or infinite"):
        run(tmp_path / "b", "replace", clients=5, rounds=4, engine=PoisonedUploads)


@pytest.mark.parametrize("name", ROBUST)
def test_end_to_end_robust_training_goes_on_as_if_nothing_were_wrong(tmp_path, clean_run, name):
    outcomes, _ = run(tmp_path, "replace", clients=5, rounds=4, aggregate=ROBUST[name], engine=PoisonedUploads)
    assert length(outcomes[-1]) < 1.2 * length(clean_run[-1])
    assert losses(outcomes) == pytest.approx(losses(clean_run), abs=0.25)
    assert losses(outcomes)[-1] < losses(outcomes)[0] - 0.5
