"""Every method with every rule and every engine: no new test file is needed for a new entry of either registry."""

import math
from functools import partial

import pytest

from fedssl.federation.engines.flower.client_app import Side
from fedssl.federation.engines.flower.directory import Numbered
from fedssl.federation.engines.flower.engine import FlowerEngine
from fedssl.federation.engines.processes import ProcessEngine
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS
from tests.helpers.flower_grid import FakeGrid, answering, node
from tests.helpers.small import digests, make_client, make_method, run, state_digests
from tests.helpers.worker_sides import of_method

CLIENTS, EACH = 3, 16  # so few that a sum depends on their order, and two steps in every round


def in_worker(folder, method, rule, settings):
    side = partial(of_method, folder, method, rule, settings, CLIENTS, EACH)
    return lambda client, store: ProcessEngine(side=side, folder=folder, workers=1)


def over_messages(folder):
    def engine(client, store):
        grid = FakeGrid(
            [node(number) for number in range(CLIENTS)], answering(Side(client, store, folder / "log.jsonl"))
        )
        places = {"grid": grid, "directory": Numbered(grid, CLIENTS), "folder": folder}
        return FlowerEngine(**places, about=lambda _: {}, waiting=print, patience=1.0, pause=0.0)

    return engine


def few(folder, rule, method, settings, **options):
    client, _ = of_method(folder, method, rule, settings, CLIENTS, EACH, 0)
    return run(folder, client.rule, client=client, clients=CLIENTS, **options)


@pytest.mark.parametrize("rule", UPDATE_RULES)
@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_stay_finite_and_every_engine_has_the_same_bits(tmp_path, method, rule):
    # A transformer has no convolutions named conv*: FedU's usual norm is refused there, with this remedy.
    settings = {"norm": "mean-matrix"} if (method, rule) == ("mae", "fedu") else {}
    outcomes, store = few(tmp_path / "a", rule, method, settings)
    for outcome in outcomes:
        assert len(outcome.results) == CLIENTS
        for result in outcome.results:
            assert math.isfinite(result.scalars["loss"])
            assert 0 <= result.scalars.get("mu", 0.0) <= 1
            assert result.num_examples == EACH
    engines = {"b": in_worker(tmp_path / "b", method, rule, settings), "c": over_messages(tmp_path / "c")}
    for place, engine in engines.items():
        again, again_store = few(tmp_path / place, rule, method, settings, engine=engine)
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
        state, _ = client.train(state, TrainTask(1, round_number, accepted_round=accepted, global_weights=start))
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
