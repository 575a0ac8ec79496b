"""The update rules by hand, and the identities between them."""

import math

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.messages import GlobalWeights
from fedssl.federation.model_communication import (
    ConstantMu,
    FedEMA,
    FedU,
    NoUpdate,
    Replace,
    UpdateBoth,
    begin,
    private_names,
)
from tests.helpers.small import digests, make_client, make_method, of, result, run, state, state_digests, task, values

LOCAL = {"online": (4.0, 0.0), "predictor": (8.0, 0.0), "target": (7.0, 7.0)}
GLOBAL = {"encoder": (1.0, 4.0), "predictor": (2.0, 0.0)}  # ‖W_g − W_k‖ = ‖(−3, 4)‖ = 5


# --- one update by hand ----------------------------------------------------------------------------------------------


def test_first_participation_takes_everything_from_the_global_model():
    weights, scalars = begin(FedEMA(), None, task(**GLOBAL, accepted_round=None))
    assert (values(weights.online), values(weights.target)) == ([1.0, 4.0], [1.0, 4.0])
    assert values(weights.predictor) == [2.0, 0.0]
    assert scalars["ema"] == 0.0


def test_replace():
    weights, _ = Replace().update(state(**LOCAL), task(**GLOBAL))
    assert (values(weights.online), values(weights.predictor), values(weights.target)) == ([1, 4], [2, 0], [7, 7])


def test_update_both_differs_from_replace_only_in_the_target():
    weights, _ = UpdateBoth().update(state(**LOCAL), task(**GLOBAL))
    assert (values(weights.online), values(weights.predictor), values(weights.target)) == ([1, 4], [2, 0], [1, 4])


def test_none_keeps_everything():
    local = state(**LOCAL, last_round=1)
    weights, _ = NoUpdate().update(local, task(**GLOBAL, round_number=9))
    assert weights is local.weights


def test_constant_mu():
    rule = ConstantMu(mu_encoder=0.25, mu_predictor=0.5)
    weights, scalars = rule.update(state(**LOCAL), task(**GLOBAL))
    assert values(weights.online) == [0.25 * 4 + 0.75 * 1, 0.75 * 4]
    assert values(weights.predictor) == [5.0, 0.0]
    assert values(weights.target) == [7, 7]
    assert (scalars["mu"], scalars["mu_predictor"]) == (0.25, 0.5)


def test_fedema_fixed_scale_global_local_l2():
    rule = FedEMA(scale=0.1, between="global-local", norm="l2")
    weights, scalars = rule.update(state(**LOCAL), task(**GLOBAL))
    assert scalars["divergence"] == 5.0
    assert scalars["mu"] == 0.5
    assert values(weights.online) == [2.5, 2.0]
    assert values(weights.predictor) == [5.0, 0.0]
    assert values(weights.target) == [7, 7]


def test_fedema_mean_conv_of_one_layer_equals_its_l2():
    rule = FedEMA(scale=0.1, between="global-local", norm="mean-conv")
    assert rule.update(state(**LOCAL), task(**GLOBAL))[1]["divergence"] == 5.0


def test_fedema_before_after_uses_what_the_client_measured():
    rule = FedEMA(scale=0.1, between="before-after")
    measured = rule.measure(of(1.0, 1.0), of(1.0, 3.0))
    assert measured == {"training_divergence": 2.0}
    _, scalars = rule.update(state(**LOCAL, **measured), task(**GLOBAL))
    assert scalars["mu"] == pytest.approx(0.2)
    assert FedEMA(between="global-local").measure(of(1.0), of(2.0)) == {}


def test_fedema_mu_is_at_most_one():
    weights, scalars = FedEMA(scale=3.0, between="global-local").update(state(**LOCAL), task(**GLOBAL))
    assert scalars["mu"] == 1.0
    assert values(weights.online) == [4.0, 0.0]


@pytest.mark.parametrize(
    ("part", "online", "predictor"), [("encoder", [2.5, 2], [2, 0]), ("predictor", [1, 4], [5, 0])]
)
def test_fedema_on_one_part_only(part, online, predictor):
    rule = FedEMA(scale=0.1, between="global-local", apply_to=part)
    weights, _ = rule.update(state(**LOCAL), task(**GLOBAL))
    assert (values(weights.online), values(weights.predictor)) == (online, predictor)


def test_fedu_replaces_the_predictor_only_below_the_threshold():
    for threshold, predictor in ((5.1, [2.0, 0.0]), (5.0, [8.0, 0.0])):
        weights, scalars = FedU(threshold=threshold).update(state(**LOCAL), task(**GLOBAL))
        assert values(weights.online) == [1.0, 4.0]
        assert values(weights.predictor) == predictor
        assert scalars["predictor_replaced"] == (predictor == [2.0, 0.0])


# --- the autoscaler --------------------------------------------------------------------------------------------------


def test_autoscaler_by_hand():
    aggregated = GlobalWeights(of(1.0, 4.0), of(2.0, 0.0))
    rule = FedEMA(tau=0.7, between="global-local")
    assert rule.note({}, result(0, (4.0, 0.0), (8.0, 0.0)), aggregated) == {"scale": 0.7 / 5}
    rule = FedEMA(tau=0.7, between="before-after")
    assert rule.note({}, result(0, (4.0, 0.0), (8.0, 0.0), training_divergence=2.0), aggregated) == {"scale": 0.35}


def test_autoscaler_never_changes_a_scale_and_skips_a_divergence_of_zero():
    aggregated = GlobalWeights(of(1.0), of(2.0))
    rule = FedEMA(between="global-local")
    assert rule.note({"scale": 0.123}, result(0, (9.0,), (9.0,)), aggregated) == {"scale": 0.123}
    assert rule.note({}, result(0, (1.0,), (9.0,)), aggregated) == {}  # one client: W_g = W_k
    assert FedEMA(scale=0.5).note({}, result(0, (9.0,), (9.0,)), aggregated) == {}


def test_client_without_a_scale_starts_over_as_in_algorithm_1():
    weights, scalars = FedEMA(tau=0.7).update(state(**LOCAL, training_divergence=1.0), task(**GLOBAL))
    assert values(weights.target) == [1.0, 4.0]
    assert scalars["ema"] == 0.0


@pytest.mark.parametrize("between", ["global-local", "before-after"])
def test_training_that_moves_nothing_sets_no_scale_and_stays_finite(tmp_path, between):
    rule = FedEMA(between=between)
    client = make_client(make_method(), rule, training=LocalTraining(epochs=1, batch_size=8, lr=0.0))
    outcomes, _ = run(tmp_path, rule, rounds=2, client=client)
    assert outcomes[-1].state.notes == {k: {} for k in range(4)}
    assert all(r.scalars["ema"] == 0.0 and math.isfinite(r.scalars["loss"]) for r in outcomes[-1].results)


@pytest.mark.parametrize("rule", [FedEMA(norm="mean-conv"), FedU()])
def test_mean_conv_without_convolutions_is_refused_before_the_first_round(rule):
    with pytest.raises(FedsslError, match=r"update_rule\.norm: 'mean-conv' needs convolutions .* use 'mean-matrix'"):
        rule.check(Weights({"linear.weight": torch.ones(2, 2)}))
    rule.check(of(1.0))


# --- the stale rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Replace, FedU, FedEMA, ConstantMu])
def test_selective_starts_over_after_a_missed_round(rule):
    missed = state(**LOCAL, last_round=1, training_divergence=1.0)
    weights, scalars = rule(stale="selective").update(missed, task(**GLOBAL, round_number=3, scale=0.1))
    assert (values(weights.online), values(weights.target)) == ([1.0, 4.0], [1.0, 4.0])
    assert scalars["ema"] == 0.0


def test_always_mixes_however_old_the_state_is():
    old = state(**LOCAL, last_round=1)
    rule = FedEMA(scale=0.1, between="global-local", stale="always")
    assert values(rule.update(old, task(**GLOBAL, round_number=8))[0].online) == [2.5, 2.0]
    assert values(ConstantMu(stale="always").update(old, task(**GLOBAL, round_number=8))[0].online) == [2.5, 2.0]


@pytest.mark.parametrize("rule", [FedEMA(scale=0.1, stale="keep-target"), ConstantMu(stale="keep-target")])
def test_keep_target_takes_the_global_online_network_and_its_own_target(rule):
    old = state(**LOCAL, last_round=1, training_divergence=1.0)
    weights, scalars = rule.update(old, task(**GLOBAL, round_number=8))
    assert (values(weights.online), values(weights.predictor), values(weights.target)) == ([1, 4], [2, 0], [7, 7])
    assert scalars["ema"] == 0.0


# --- identities over whole runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_round", [None, 2])
@pytest.mark.parametrize("between", ["global-local", "before-after"])
def test_lambda_0_equals_fedbyol_bit_for_bit(tmp_path, between, per_round):
    byol, byol_store = run(tmp_path / "byol", "replace", rounds=3, per_round=per_round)
    ema, ema_store = run(tmp_path / "ema", "fedema", rounds=3, per_round=per_round, scale=0.0, between=between)
    assert [digests(outcome) for outcome in byol] == [digests(outcome) for outcome in ema]
    assert state_digests(byol_store, byol[-1]) == state_digests(ema_store, ema[-1])


def test_constant_mu_0_equals_replace_and_1_never_mixes(tmp_path):
    replaced, _ = run(tmp_path / "a", "replace", rounds=3)
    mu_0, _ = run(tmp_path / "b", "constant-mu", rounds=3, mu_encoder=0.0, mu_predictor=0.0)
    assert digests(replaced[-1]) == digests(mu_0[-1])
    mu_1, mu_1_store = run(tmp_path / "c", "constant-mu", rounds=3, mu_encoder=1.0, mu_predictor=1.0)
    alone, alone_store = run(tmp_path / "d", "none", rounds=3)
    assert state_digests(mu_1_store, mu_1[-1]) == state_digests(alone_store, alone[-1])


def test_fedema_really_differs_from_fedbyol(tmp_path):
    byol, _ = run(tmp_path / "byol", "replace", rounds=2)
    ema, _ = run(tmp_path / "ema", "fedema", rounds=2)
    assert digests(byol[0]) == digests(ema[0]), "the first round has nothing to mix"
    assert digests(byol[1]) != digests(ema[1])


@pytest.mark.parametrize("norm", ["l2", "mean-conv"])
@pytest.mark.parametrize("between", ["global-local", "before-after"])
def test_with_all_clients_in_the_first_mu_is_tau_and_lambda_never_changes(tmp_path, between, norm):
    outcomes, _ = run(tmp_path, "fedema", rounds=4, tau=0.6, between=between, norm=norm)
    assert all("mu" not in r.scalars for r in outcomes[0].results)
    assert [r.scalars["mu"] for r in outcomes[1].results] == pytest.approx([0.6] * 4)
    first = outcomes[0].state.notes
    assert len(first) == 4
    for outcome in outcomes[1:]:
        assert outcome.state.notes == first
        for r in outcome.results:
            assert r.scalars["scale"] == first[r.client_id]["scale"]
            assert r.scalars["mu"] == pytest.approx(min(1.0, r.scalars["scale"] * r.scalars["divergence"]))


def test_update_both_differs_from_replace_only_through_the_target(tmp_path):
    both, both_store = run(tmp_path / "a", "update-both", rounds=1)
    replaced, replaced_store = run(tmp_path / "b", "replace", rounds=1)
    assert state_digests(both_store, both[0]) == state_digests(replaced_store, replaced[0])
    simsiam_both, _ = run(tmp_path / "c", "update-both", method="simsiam", rounds=2)
    simsiam_replaced, _ = run(tmp_path / "d", "replace", method="simsiam", rounds=2)
    assert digests(simsiam_both[-1]) == digests(simsiam_replaced[-1]), "without a target the two rules are one"
    both, _ = run(tmp_path / "e", "update-both", rounds=2)
    replaced, _ = run(tmp_path / "f", "replace", rounds=2)
    assert digests(both[-1]) != digests(replaced[-1])


def test_standalone_never_mixes(tmp_path):
    """A client alone in its federation and one among four, with the same images, end with the same weights."""
    outcomes, store = run(tmp_path / "four", "none", rounds=3, clients=4)
    client = make_client(make_method(), NoUpdate(), clients=4, rounds=3)
    among_one, one_store = run(tmp_path / "one", NoUpdate(), rounds=3, clients=1, client=client)
    assert state_digests(one_store, among_one[-1])[0] == state_digests(store, outcomes[-1])[0]
    initial = client.initial_global_weights().encoder.digest()
    assert outcomes[-1].state.global_weights.encoder.digest() == initial
    assert sum(r.num_bytes() for outcome in outcomes for r in outcome.results) == 0, "nothing leaves a client"


def test_ema_share_under_sampling_is_that_of_clients_seen_in_the_round_before(tmp_path):
    outcomes, _ = run(tmp_path, "fedema", rounds=8, clients=4, per_round=2)
    previous: set[int] = set()
    for outcome in outcomes:
        sampled = {r.client_id for r in outcome.results}
        mixed = {r.client_id for r in outcome.results if r.scalars["ema"] == 1.0}
        assert mixed == sampled & previous
        previous = sampled


# --- what stays at the client ----------------------------------------------------------------------------------------


def test_private_names_are_found_by_type():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ModuleDict({"odd": nn.BatchNorm2d(1)}))
    statistics = {"1.odd.running_mean", "1.odd.running_var", "1.odd.num_batches_tracked"}
    assert private_names(module, "average") == frozenset()
    assert private_names(module, "local-statistics") == statistics
    assert private_names(module, "local-layers") == statistics | {"1.odd.weight", "1.odd.bias"}


@pytest.mark.parametrize("sharing", ["local-statistics", "local-layers"])
def test_local_batchnorm_is_neither_sent_nor_overwritten(tmp_path, sharing):
    rule = FedEMA()
    client = make_client(make_method(), rule, rounds=2, batchnorm=sharing)
    outcomes, store = run(tmp_path, rule, rounds=2, client=client)
    sent = outcomes[-1].results[0].weights.encoder
    assert not any("running" in name or "num_batches" in name for name in sent.tensors())
    assert any(name.startswith("backbone.bn") for name in sent.tensors()) == (sharing == "local-statistics")
    statistics = [store.load(k, 2).weights.online.buffers["backbone.bn1.running_mean"] for k in range(4)]
    assert not torch.equal(statistics[0], statistics[1])
    # two rounds of ten steps of two views each... counted on, never reset by the global model
    counter = store.load(0, 2).weights.online.buffers["backbone.bn1.num_batches_tracked"].item()
    assert counter == 2 * 2 * math.floor(20 / 8)
    assert "running_mean" not in " ".join(outcomes[-1].state.global_weights.encoder.tensors())


def test_upload_target_sends_the_target_encoder(tmp_path):
    client = make_client(make_method(), Replace(), rounds=1, upload="target")
    outcomes, store = run(tmp_path, Replace(), rounds=1, client=client)
    weights = store.load(0, 1).weights
    assert outcomes[0].results[0].weights.encoder.digest() == weights.target.digest()
    assert weights.target.digest() != weights.online.digest()


# --- lambda at the client ---------------------------------------------------------------------------------------------


def without_notes(outcomes):
    return [[(r.client_id, r.scalars.get("mu"), r.scalars.get("scale")) for r in o.results] for o in outcomes]


@pytest.mark.parametrize("between", ["global-local", "before-after"])
def test_lambda_at_the_client_is_the_servers_bit_for_bit_under_full_participation(tmp_path, between):
    server, server_store = run(tmp_path / "a", "fedema", rounds=4, between=between)
    client, client_store = run(tmp_path / "b", "fedema", rounds=4, between=between, lambda_at="client")
    assert [digests(one) for one in server] == [digests(one) for one in client]
    assert state_digests(server_store, server[-1]) == state_digests(client_store, client[-1])
    assert without_notes(server) == without_notes(client)
    assert server[-1].state.notes == {k: {"scale": client_store.load(k, 4).scalars["scale"]} for k in range(4)}
    assert all(not outcome.state.notes.get(k) for outcome in client for k in range(4)), "no note travels"


def test_lambda_at_the_client_by_hand():
    """tau / ‖W_g − W_k‖ = 0.7 / 5 at the second task; kept from then on, whatever the distance."""
    rule = FedEMA(lambda_at="client")
    local, second = state((0.0, 0.0), (0.0,), (9.0, 9.0)), task((3.0, 4.0), (0.0,))
    _, scalars = rule.update(local, second)
    assert (scalars["scale"], scalars["mu"]) == pytest.approx((0.14, 0.7))
    assert rule.kept(scalars) == {"scale": scalars["scale"]}
    _, later = rule.update(state((0.0, 0.0), (0.0,), (9.0, 9.0), scale=0.14), task((0.0, 1.0), (0.0,)))
    assert later["mu"] == pytest.approx(0.14)
    assert rule.note({}, result(0, (1.0,), (0.0,)), GlobalWeights(of(2.0), of(0.0))) == {}


def test_lambda_at_the_client_after_missed_rounds_and_at_no_distance():
    """A client that missed rounds starts over and keeps its lambda; at distance 0 none is set yet."""
    rule = FedEMA(lambda_at="client")
    start, scalars = rule.update(state((0.0, 0.0), (0.0,), (9.0, 9.0), last_round=1), task((3.0, 4.0), (0.0,), 5))
    assert values(start.online) == [3.0, 4.0]
    assert scalars == {"ema": 0.0, "scale": pytest.approx(0.14)}
    start, scalars = rule.update(state((3.0, 4.0), (0.0,), (9.0, 9.0)), task((3.0, 4.0), (0.0,)))
    assert scalars == {"ema": 0.0}
    assert rule.kept(scalars) == {}
    assert FedEMA(lambda_at="client", scale=0.5).kept({"scale": 0.5}) == {}


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_lambda_at_the_client_is_nearly_the_servers_where_weights_are_rounded_on_the_way(tmp_path, wire):
    """The client knows its own weights exactly, the server only as they arrived."""
    server, _ = run(tmp_path / "a", "fedema", rounds=1, wire=wire)
    _, store = run(tmp_path / "b", "fedema", rounds=2, wire=wire, lambda_at="client")
    for k in range(4):
        assert store.load(k, 2).scalars["scale"] == pytest.approx(server[0].state.notes[k]["scale"], rel=0.02)


@pytest.mark.parametrize(("told", "noted"), [(0.5, {"scale": 1.4}), (0.0, {}), (-1.0, {}), (5e-324, {})])
def test_lambda_is_never_made_of_a_number_whose_inverse_is_infinite(told, noted):
    """The server keeps it in its checkpoint, which holds finite numbers only."""
    rule = FedEMA(between="before-after")
    assert (
        rule.note({}, result(0, (1.0,), (1.0,), training_divergence=told), task([1.0], [1.0]).global_weights) == noted
    )
