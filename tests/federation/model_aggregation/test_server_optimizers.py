"""Server momentum and FedAdam: three rounds by hand and in numpy, and a run that is stopped remembers."""

import numpy as np
import pytest
import torch

from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.messages import GlobalWeights
from fedssl.federation.model_aggregation.server_optimizers import FedAdam, FedAvgM
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import Replace
from fedssl.federation.rounds import ServerState, accept
from tests.faults.test_damage import QUICK, Stops
from tests.federation.test_model_aggregation import digest, random_results, random_weights
from tests.helpers.faults import everything, experiment
from tests.helpers.small import digests, make_server, of, result, run, values

START = GlobalWeights(of(1.0, 0.0), of(0.0))


def rounds(aggregate, averages, start=START):
    """The encoder's two weights after rounds in which the clients' averages are these."""
    state, found = ServerState(0, start), []
    for number, average in enumerate(averages, 1):
        uploads = [result(0, average, (0.0,), 1), result(1, average, (0.0,), 3)]
        state = accept(make_server(2, Replace(), aggregate), state, uploads)
        assert state.round_number == number
        found.append(values(state.global_weights.encoder))
    return found, state


def test_momentum_by_hand():
    """From 1: the clients say 2 (v = 1, so 2), then 2 again (delta 0, v = 0.5), then 2 (delta −0.5, v = −0.25)."""
    found, state = rounds(FedAvgM(momentum=0.5), [(2.0, 0.0)] * 3)
    assert [first for first, _ in found] == pytest.approx([2.0, 2.5, 2.25])
    assert state.memory["encoder.conv1.weight/velocity"].flatten().tolist() == pytest.approx([-0.25, 0.0])
    assert state.global_weights.encoder.buffers["bn.running_mean"].tolist() == [200.0], "statistics are averaged"


def test_without_momentum_it_is_the_average():
    uploads, previous = random_results(), random_weights(99)
    ours, plain = FedAvgM(momentum=0.0)(uploads, previous), WeightedAverage()(uploads, previous)
    for name, tensor in plain.encoder.tensors().items():
        torch.testing.assert_close(ours.encoder.tensors()[name], tensor)


def test_adam_by_hand():
    """delta 1 with b1 = b2 = 0, tau = 1: m = v = 1, so lr · 1 / (1 + 1)."""
    found, _ = rounds(FedAdam(lr=0.1, beta1=0.0, beta2=0.0, tau=1.0), [(2.0, 0.0)])
    assert found[0] == pytest.approx([1.05, 0.0])


def test_adam_against_numpy():
    rng, aggregate = np.random.default_rng(0), FedAdam()
    averages = rng.normal(size=(4, 2)).astype(np.float32)
    found, _ = rounds(aggregate, [tuple(map(float, average)) for average in averages])
    weights, m, v = np.array([1.0, 0.0]), np.zeros(2), np.full(2, 1e-6)
    for average, got in zip(averages, found, strict=True):
        delta = average - weights
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        weights = weights + 0.01 * m / (np.sqrt(v) + 1e-3)
        assert got == pytest.approx(weights, rel=1e-5)


@pytest.mark.parametrize("aggregate", [FedAvgM(), FedAdam()])
def test_replies_in_any_order_and_any_precision_remember_alike(aggregate):
    results, previous = random_results(dtype=torch.bfloat16), random_weights(99, torch.bfloat16)
    (one, kept), (other, also) = (aggregate.advance(order, previous, {}) for order in (results, results[::-1]))
    assert digest(one) == digest(other)
    assert all(torch.equal(kept[name], also[name]) for name in kept)
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    again, _ = aggregate.advance(results, previous, kept)
    assert digest(again) != digest(one), "what is remembered counts"


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_a_run_that_is_stopped_ends_with_the_same_bits(tmp_path, name):
    """3 of 6 clients in each round; the checkpoint holds what the server remembers."""
    settings = QUICK | {"aggregation.name": name}
    experiment("BYOL + FedEMA", **settings).run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        experiment("BYOL + FedEMA", **settings).run(tmp_path / "part", Stops(2))
    experiment("BYOL + FedEMA", **settings).run(tmp_path / "part")
    assert everything(tmp_path / "part") == everything(tmp_path / "whole")


def test_checkpoints_keep_the_memory_and_older_ones_have_none(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(Checkpoint(ServerState(1, START, memory={"encoder.w/velocity": torch.tensor([3.0])})))
    store.save(Checkpoint(ServerState(2, START)))
    assert store.load(1).state.memory["encoder.w/velocity"].tolist() == [3.0]
    assert store.load(2).state.memory == {}


def test_momentum_changes_rounds_from_the_second_on(tmp_path):
    plain, _ = run(tmp_path / "a", "replace", rounds=2)
    moved, _ = run(tmp_path / "b", "replace", rounds=2, aggregate=FedAvgM())
    for name, tensor in plain[0].state.global_weights.encoder.parameters.items():
        torch.testing.assert_close(moved[0].state.global_weights.encoder.parameters[name], tensor)
    assert digests(plain[1]) != digests(moved[1])
