"""Every method with every rule: no new test file is needed for a new entry of either registry."""

import math

import pytest

from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS
from tests.helpers.small import digests, make_client, make_method, run, state_digests


@pytest.mark.parametrize("rule", UPDATE_RULES)
@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_stay_finite_and_repeat_bit_for_bit(tmp_path, method, rule):
    # A transformer has no convolutions named conv*: FedU's usual norm is refused there, with this remedy.
    settings = {"norm": "mean-matrix"} if (method, rule) == ("mae", "fedu") else {}
    outcomes, store = run(tmp_path / "a", rule, method, **settings)
    for outcome in outcomes:
        assert len(outcome.results) == 4
        for result in outcome.results:
            assert math.isfinite(result.scalars["loss"])
            assert 0 <= result.scalars.get("mu", 0.0) <= 1
            assert result.num_examples == 20
    again, again_store = run(tmp_path / "b", rule, method, **settings)
    assert [digests(o) for o in outcomes] == [digests(o) for o in again]
    assert state_digests(store, outcomes[-1]) == state_digests(again_store, again[-1])


@pytest.mark.parametrize("method", METHODS)
def test_clients_share_one_module_without_leaking_into_each_other(tmp_path, method):
    """Client 1 ends with the same bits whether client 0 trained before it in the same process or not."""
    rule = UPDATE_RULES["none"]()
    _, store = run(tmp_path / "a", "none", method, rounds=2)
    client = make_client(make_method(method), rule, rounds=2)
    state = None
    from fedssl.core.weights import Weights
    from fedssl.federation.messages import GlobalWeights, TrainTask

    for round_number, accepted in ((1, None), (2, 1)):
        start = client.initial_global_weights() if accepted is None else GlobalWeights(Weights(), Weights())
        state, _ = client.train(state, TrainTask(1, round_number, accepted, start))
    stored = store.load(1, 2)
    assert state.weights.online.digest() == stored.weights.online.digest()
    assert state.weights.target.digest() == stored.weights.target.digest()
    assert all((state.memory[name] == stored.memory[name]).all() for name in state.memory)


@pytest.mark.parametrize("method", METHODS)
def test_only_encoder_predictor_and_count_travel(tmp_path, method):
    outcomes, _ = run(tmp_path, "replace", method, rounds=1)
    module = make_method(method)
    result = outcomes[0].results[0]
    assert set(result.weights.encoder.tensors()) == set(module.online_encoder.state_dict())
    assert set(result.weights.predictor.tensors()) == set(module.predictor.state_dict())
    assert bool(result.payload) == bool(METHODS[method].leaves), "what leaves a client beside weights is said aloud"
