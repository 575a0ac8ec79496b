"""Rounds whose uploads are summed securely: the plain average, dropouts and kills at every stage, nothing else told."""

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedssl.core.errors import RoundError
from fedssl.federation.client import attempt
from fedssl.federation.messages import Failure, GlobalWeights
from fedssl.federation.model_aggregation.base import joined
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import UPDATE_RULES, ConstantMu, FedEMA
from fedssl.federation.privacy.mechanism import ClientDP
from fedssl.federation.rounds import TooFewClientsError
from fedssl.federation.secure.client_side import MASKED, RECORD
from fedssl.federation.secure.member import RunRecord
from fedssl.federation.secure.stages import from_bytes
from fedssl.federation.secure.terms import VECTOR
from fedssl.federation.wire import EXACT
from fedssl.methods import METHODS
from tests.helpers.secure_federation import (
    AFTER_TRAINING,
    STAGES,
    KilledError,
    SecureFederation,
    killed_once,
    server_killed,
    silent,
)
from tests.helpers.secure_parties import average_error
from tests.helpers.small import digests, make_client, make_method, run, state_digests

SHARING = [name for name, rule in UPDATE_RULES.items() if rule.shares]
WEIGHTS_ALONE = [name for name, method in METHODS.items() if not method.leaves]


def settings_of(rule):
    return {"lambda_at": "client"} if rule == "fedema" else {}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two rounds without a disturbance: what every disturbed run must end with."""
    federation = SecureFederation(tmp_path_factory.mktemp("undisturbed") / "run")
    outcomes = federation.rounds(2)
    return outcomes, state_digests(federation.store, outcomes[-1])


def same(federation, outcome, undisturbed):
    outcomes, states = undisturbed
    assert digests(outcome) == digests(outcomes[outcome.state.round_number - 1])
    assert state_digests(federation.store, outcome) == states


def near(secure, plain, terms, examples):
    """Every tensor within the stated step of the plain average; float32 rounds both."""
    layout = terms.layout
    errors = {entry.name: average_error(layout, entry, examples) for entry in layout.tensors}
    ours, theirs = joined(secure).tensors(), joined(plain).tensors()
    assert ours.keys() == theirs.keys()
    for name, error in errors.items():
        bound = error + 2e-7 * float(theirs[name].abs().max()) + 1e-9
        assert float((ours[name] - theirs[name]).abs().max()) <= bound, name


# One method with every rule, one rule with every method.
@pytest.mark.parametrize(
    ("method", "rule"), [*(("byol", rule) for rule in SHARING), *((m, "fedema") for m in WEIGHTS_ALONE if m != "byol")]
)
def test_the_average_is_the_plain_one_within_the_stated_step(tmp_path, method, rule):
    made = UPDATE_RULES[rule](**settings_of(rule))
    federation = SecureFederation(tmp_path / "secure", rule=made, method=method)
    start = federation.state.global_weights
    outcome = federation.round()
    plain, _ = run(tmp_path / "plain", made, method, rounds=1, client=make_client(make_method(method), made, rounds=4))
    near(outcome.state.global_weights, plain[0].state.global_weights, federation.client.terms, 80)
    counters = {n: t for n, t in joined(start).buffers.items() if not t.is_floating_point()}
    found = joined(outcome.state.global_weights).buffers
    assert all(bool((found[name] == counter).all()) for name, counter in counters.items()), "counters stay"
    assert outcome.summed.num_examples == 80
    losses = [one.scalars["loss"] for one in plain[0].results]
    assert outcome.summed.mean("loss") == pytest.approx(np.mean(losses), abs=1e-4)
    federation.round()


def test_nothing_of_a_single_client_reaches_the_server(tmp_path):
    said = []

    def listen(stage, task, answer):
        said.append((stage, answer()))
        return [said[-1][1]]

    federation = SecureFederation(tmp_path / "run", disturb=listen)
    federation.rounds(2)
    for stage, reply in said:
        assert (reply.scalars, reply.payload, reply.num_examples) == ({}, {}, 1)
        assert bool(reply.num_bytes() > len(reply.stage)) == (stage == "Delivery"), "weights leave masked or not at all"
    masked = [reply.weights.encoder.parameters[VECTOR] for stage, reply in said if stage == "Delivery"][-4:]
    vectors = [federation.store.check(k, 2).tensors("upload/encoder/parameters/")[VECTOR] for k in range(4)]
    for upload, vector in zip(masked, vectors, strict=True):
        assert float((upload == vector).float().mean()) < 0.01
    assert (sum(m.numpy().view(np.uint32) for m in masked) != sum(v.numpy().view(np.uint32) for v in vectors)).any()


@pytest.mark.parametrize("stage", AFTER_TRAINING)
def test_a_dropout_at_every_stage(tmp_path, stage):
    """Who is gone before its upload came is not in the average; who is gone later is."""
    federation = SecureFederation(tmp_path / "run", disturb=silent([stage], [1], rounds=[2]))
    first, second = federation.rounds(2)
    left = [0, 1, 2, 3] if stage in ("SurvivorCall", "UnmaskCall") else [0, 2, 3]
    assert [one.client_id for one in second.results] == left
    assert second.state.accepted_round == {k: 2 if k in left else 1 for k in range(4)}
    assert [failure.code for failure in second.failures] == ["no-reply"] * 2, "it was asked again first"
    assert second.summed.num_examples == 20 * len(left)
    results = [_plain_result(federation, k, first.state.global_weights) for k in left]
    plain = WeightedAverage()(results, first.state.global_weights)
    near(second.state.global_weights, plain, federation.client.terms, 20 * len(left))


def _plain_result(federation, client_id, received):
    """What a client would have sent in the clear."""
    from fedssl.federation.messages import TrainResult

    weights = federation.store.load(client_id, 2).weights
    return TrainResult(client_id, 2, GlobalWeights(weights.online, weights.predictor), num_examples=20)


@pytest.mark.parametrize("stage", STAGES)
def test_fewer_than_the_threshold_fail_the_round_and_the_weights_stay(tmp_path, stage, undisturbed):
    federation = SecureFederation(tmp_path / "run", disturb=silent([stage], [0, 3]))
    before = federation.state
    with pytest.raises(TooFewClientsError, match=r"^round 1: .*3 are needed.*missing: client 0: no-reply") as caught:
        federation.round()
    assert {failure.client_id for failure in caught.value.failures} == {0, 3}
    assert federation.state is before
    federation.disturb = None
    assert digests(federation.round()) == digests(undisturbed[0][0])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stage", STAGES[2:])
def test_a_client_killed_at_every_stage_changes_no_bit(tmp_path, stage, after, undisturbed):
    federation = SecureFederation(tmp_path / "run", disturb=killed_once(stage, 2, after))
    outcomes = federation.rounds(2)
    if stage != "train":  # there two thirds are enough, and who failed is not waited for
        same(federation, outcomes[-1], undisturbed)
        assert [failure.detail for failure in outcomes[1].failures] == ["killed"]
    else:
        assert [one.client_id for one in outcomes[1].results] == [0, 1, 3]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stage", STAGES[2:])
def test_a_server_killed_at_every_stage_ends_with_the_same_bits(tmp_path, stage, after, undisturbed):
    federation = SecureFederation(tmp_path / "run", disturb=server_killed(stage, after))
    federation.round()
    with pytest.raises(KilledError):
        federation.round()
    again = SecureFederation(tmp_path / "run")
    again.state = federation.state
    same(again, again.round(), undisturbed)
    assert again.server.secure.run == federation.server.secure.run
    assert ("train", 2, 0) in again.asked


def test_a_round_that_was_opened_is_repeated_for_the_same_sites_only(tmp_path):
    """With another set, the difference of the two sums would be the vector of who is in one of them."""

    def disturb(stage, task, answer):
        if task.round_number == 2 and stage == "Delivery" and task.client_id == 3:
            return []
        return [answer()]

    federation = SecureFederation(tmp_path / "run", disturb=disturb)
    first, second = federation.rounds(2)
    again = SecureFederation(tmp_path / "run")  # the server lost what it learnt
    again.state = first.state
    repeated = again.round()
    assert digests(repeated) == digests(second), "client 3 is back, and is left out once more"
    without = SecureFederation(tmp_path / "run", disturb=silent(["train"], [0], rounds=[2]))
    without.state = first.state
    with pytest.raises(RoundError, match=r"was opened for .*client-00000 must come back"):
        without.round()
    forgetful = SecureFederation(tmp_path / "run")
    forgetful.state, forgetful.server.secure.opened = first.state, {}
    with pytest.raises(TooFewClientsError, match="client-00003: round 2 was opened before") as caught:
        forgetful.round()
    assert "refused" in {failure.code for failure in caught.value.failures}


def test_keys_are_exchanged_once_and_again_when_somebody_is_new(tmp_path):
    federation = SecureFederation(tmp_path / "run", clients=6, per_round=3)
    outcomes = federation.rounds(3)
    met = [client for stage, _, client in federation.asked if stage == "KeyCall"]
    assert len(met) == len(set(met)) == len({r.client_id for o in outcomes for r in o.results})
    whole = SecureFederation(tmp_path / "whole")
    whole.rounds(2)
    assert [entry for entry in whole.asked if entry[0] in ("KeyCall", "Peers") and entry[1] == 2] == []


def test_a_client_whose_answers_are_rubbish_is_its_own_failure(tmp_path):
    def disturb(stage, task, answer):
        reply = answer()
        if stage in AFTER_TRAINING and task.client_id == 2:
            object.__setattr__(reply, "stage", b"RoundShares {}" if stage == "RoundCall" else b"\xff")
        return [reply]

    federation = SecureFederation(tmp_path / "run", disturb=disturb)
    outcome = federation.round()
    assert [one.client_id for one in outcome.results] == [0, 1, 3]
    assert {failure.code for failure in outcome.failures} == {"rejected"}
    assert "no readable RoundShares" in outcome.failures[0].detail


def test_an_upload_of_another_size_is_rejected_before_it_is_added(tmp_path):
    def disturb(stage, task, answer):
        reply = answer()
        if stage == "Delivery" and task.client_id == 2:
            cut = reply.weights.encoder.parameters[VECTOR][:-1].clone()
            object.__setattr__(
                reply,
                "upload",
                GlobalWeights(type(reply.weights.encoder)({VECTOR: cut}), type(reply.weights.encoder)()),
            )
        return [reply]

    outcome = SecureFederation(tmp_path / "run", disturb=disturb).round()
    assert [one.client_id for one in outcome.results] == [0, 1, 3]
    assert "got shape" in outcome.failures[0].detail


def test_a_site_that_cannot_trust_another_stops_and_names_it(tmp_path):
    """The server hands out a key of its own for client 1: every other site refuses before anything is trained."""
    federation = SecureFederation(tmp_path / "run")
    sums = federation.server.secure
    other = SecureFederation(tmp_path / "other").server.secure
    sums.roster = dict(sums.roster) | {"client-00001": other.roster["client-00001"]}
    federation.server.secure._adverts.clear()
    liar = SecureFederation(tmp_path / "other")
    liar.server.secure.run = sums.run
    liar.server.secure.meet(liar, 1, [0, 1, 2, 3])
    sums._adverts["client-00001"] = liar.server.secure._adverts["client-00001"]
    with pytest.raises(TooFewClientsError, match="site client-00001: its signature does not verify") as caught:
        federation.round()
    assert {f.code for f in caught.value.failures if f.client_id != 1} == {"untrusted"}
    assert not [stage for stage, *_ in federation.asked if stage == "train"]


def test_a_server_that_gives_one_site_other_weights_or_settings_gets_no_sum(tmp_path):
    """All but one would train from weights that do not move, and the sum would be that one's update."""

    def other_weights(stage, task, answer):
        if stage == "train" and task.client_id != 2:
            still = task.global_weights.encoder.map(lambda _, tensor: tensor * 0)
            task = replace(task, global_weights=GlobalWeights(still, task.global_weights.predictor))
            return [attempt(federation.client, federation.store, task)]
        return [answer()]

    federation = SecureFederation(tmp_path / "run", disturb=other_weights)
    with pytest.raises(TooFewClientsError, match="client-00000 was given other weights or settings than the others"):
        federation.round()
    assert not [stage for stage, *_ in federation.asked if stage == "Delivery"]
    other = SecureFederation(tmp_path / "other")
    other.client.training = replace(other.client.training, lr=1e-9)  # at the sites, the server says the usual digest
    usual = SecureFederation(tmp_path / "usual").client
    other.server.secure.common = usual.common
    with pytest.raises(TooFewClientsError, match="was given other weights or settings"):
        other.round()


def test_values_out_of_range_are_refused_by_the_client_with_the_name_of_the_tensor(tmp_path):
    federation = SecureFederation(tmp_path / "run", limit=1e-4)
    with pytest.raises(TooFewClientsError, match=r"client 0: refused .*encoder\.\S+: .* is beyond 0.0001"):
        federation.round()


def test_secrets_are_for_their_owner_alone_and_in_no_record(tmp_path):
    federation = SecureFederation(tmp_path / "run")
    outcome = federation.rounds(2)[-1]
    files = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    secret = [path for path in files if path.suffix in (".secret", ".key")]
    assert len(secret) == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    record = from_bytes(RunRecord, (federation.store.path(0, 2).parent / RECORD).read_bytes())
    hidden = [record.share_key, record.secret.seed, record.secret.mask_key]
    said = (
        repr(outcome) + json.dumps([vars(one) for one in outcome.failures]) + (tmp_path / "run/secure.json").read_text()
    )
    for path in files:
        if path not in secret:
            content = path.read_bytes()
            assert not any(one in content or one.hex().encode() in content for one in hidden), path
    assert not any(one.hex() in said or repr(one) in said for one in hidden)


def test_a_client_without_its_record_says_so_and_masks_nothing(tmp_path):
    federation = SecureFederation(tmp_path / "run")
    federation.round()
    (federation.store.path(1, 1).parent / RECORD).unlink()
    outcome = federation.round()
    assert [one.client_id for one in outcome.results] == [0, 2, 3]
    assert {failure.code for failure in outcome.failures} == {"state-damaged"}
    assert not (federation.store.path(1, 2).parent / MASKED / "never").exists()


def test_noise_of_all_clients_adds_up_to_that_of_the_central_placement(tmp_path):
    """No training moves the weights further than the clip, so what is left of the sum is the noise."""
    privacy = ClientDP(clip_norm=1e-6, noise_multiplier=1e6, placement="distributed", noise_seed="run")
    rule = ConstantMu()
    federation = SecureFederation(
        tmp_path / "run", rule=rule, privacy=privacy, batchnorm="local-statistics", wire=EXACT
    )
    before = federation.state.global_weights
    outcome = federation.round()
    after = joined(outcome.state.global_weights).parameters
    moved = torch.cat([(after[n] - t).flatten() for n, t in joined(before).parameters.items()])
    expected = privacy.clip_norm * privacy.noise_multiplier / 4  # of the sum, divided by the 4 that were asked
    assert float(moved.std()) == pytest.approx(expected, rel=0.05)
    assert outcome.summed.num_examples == 4, "n_k would be a number made from data"
    assert set(federation.client.terms.numbers) == {"ema", "seconds"}
    again = SecureFederation(tmp_path / "again", rule=rule, privacy=privacy, batchnorm="local-statistics")
    assert digests(again.round()) == digests(outcome)


def test_a_repeated_round_has_the_noise_it_had(tmp_path):
    privacy = ClientDP(clip_norm=1.0, noise_multiplier=1.0, placement="distributed")
    about = {"rule": FedEMA(lambda_at="client"), "privacy": privacy, "batchnorm": "local-statistics"}
    federation = SecureFederation(tmp_path / "run", disturb=server_killed("UnmaskCall", True), **about)
    federation.round()
    with pytest.raises(KilledError):
        federation.round()
    vectors = [federation.store.check(k, 2).tensors("upload/encoder/parameters/")[VECTOR].clone() for k in range(4)]
    again = SecureFederation(tmp_path / "run", **about)
    again.state = federation.state
    again.round()
    for k, vector in enumerate(vectors):
        assert bool((again.store.check(k, 2).tensors("upload/encoder/parameters/")[VECTOR] == vector).all())


def test_a_stage_in_a_run_without_secure_aggregation_is_refused(tmp_path):
    from fedssl.federation.client_store import ClientStore
    from fedssl.federation.messages import TrainTask

    client = make_client(make_method(), FedEMA())
    reply = attempt(
        client,
        ClientStore(tmp_path),
        TrainTask(0, 1, accepted_round=None, global_weights=GlobalWeights.EMPTY, stage=b'KeyCall {"run":"r"}'),
    )
    assert isinstance(reply, Failure)
    assert (reply.code, "without secure aggregation" in reply.detail) == ("refused", True)
