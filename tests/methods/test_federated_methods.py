"""SSD, FedX and FedSC: losses by hand and in numpy, what they take from a round, and what FedSC shares."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.experiment.build.parts import build, build_warnings
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from fedssl.federation.messages import GlobalWeights, TrainTask
from fedssl.federation.model_communication import ConstantMu, Replace
from fedssl.methods.base import ClientRound
from fedssl.methods.losses import (
    correlation,
    kl_divergence,
    nt_xent,
    relational_loss,
    shortened,
    spectral_loss,
    ssd_separation,
    ssd_separation_authors,
    uniformity,
)
from tests.faults.test_damage import QUICK, Stops
from tests.helpers.faults import everything, experiment
from tests.helpers.small import TINY, make_client, make_method, run


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def views(count=6):
    return list(torch.rand(2, count, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def softmax(rows):
    return np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)


def at(method, client_id=0, num_clients=4, round_number=1, rounds=10):
    where = {"client_id": client_id, "num_clients": num_clients, "round_number": round_number, "rounds": rounds}
    weights = {"encoder": Weights.of(method.online_encoder), "predictor": Weights.of(method.predictor)}
    return ClientRound(**where, seed=0, **weights)


# --- SSD --------------------------------------------------------------------------------------------------------------


def test_uniformity_by_hand_and_in_numpy():
    """Two points apart by √2 on the circle: log exp(−2 · 2); all pairs i ≠ j otherwise."""
    assert uniformity(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 2.0).item() == pytest.approx(-4.0)
    z = unit(drawn(7, 3).double().numpy())
    pairs = [np.exp(-2 * ((z[i] - z[j]) ** 2).sum()) for i in range(7) for j in range(7) if i != j]
    assert uniformity(drawn(7, 3), 2.0).item() == pytest.approx(np.log(np.mean(pairs)), rel=1e-4)


def test_separation_by_hand():
    """(0.6, 0.8) drawn towards (6, 0.8): 5.4²; the authors' target has length 1 again."""
    z, scaling = torch.tensor([[3.0, 4.0]]), torch.tensor([10.0, 1.0])
    assert ssd_separation(z, scaling).item() == pytest.approx(5.4**2)
    target = np.array([6.0, 0.8]) / np.hypot(6.0, 0.8)
    assert ssd_separation_authors(z, scaling).item() == pytest.approx(np.hypot(0.6 - target[0], 0.8 - target[1]))


def test_kl_divergence_by_hand():
    """Halves against 1/4 and 3/4: ½ log 2 + ½ log ⅔."""
    found = kl_divergence(torch.zeros(1, 2), torch.tensor([[0.0, math.log(3)]]))
    assert found.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))


@pytest.mark.parametrize("formulas", ["paper", "authors"])
def test_ssd_against_numpy(formulas):
    settings = {"uniform_weight": 0.7, "separation_weight": 0.3, "distillation_weight": 0.2, "scale": 5.0}
    method, both = make_method("ssd", width=8, formulas=formulas, **settings).eval(), views()
    method.prepare(at(method, client_id=2, num_clients=3))
    size = len(method.scaling)
    d = np.ones(size)
    d[2 * (size // 3) : 3 * (size // 3)] = 5.0
    with torch.no_grad():
        h = [method.online_encoder.backbone(view) for view in both]
        z = [method.online_encoder.projector(one).double().numpy() for one in h]
        loss = method.loss(both).item()
    n, expected = [unit(one) for one in z], 0.0
    expected += ((n[0] - n[1]) ** 2).sum(axis=1).mean()
    for features, raw, one in zip(h, z, n, strict=True):
        pairs = [np.exp(-2 * ((one[i] - one[j]) ** 2).sum()) for i in range(6) for j in range(6) if i != j]
        expected += 0.7 * np.log(np.mean(pairs)) / 2
        ours, theirs = softmax(features.double().numpy()), softmax(raw)
        if formulas == "paper":
            expected += 0.3 * ((one - one * d) ** 2).sum(axis=1).mean() / 2
            expected += 0.2 * (ours * np.log(ours / theirs)).sum(axis=1).mean() / 2
        else:
            expected += 0.3 * np.sqrt(((one - unit(one * d)) ** 2).sum()) / 6 / 2
            ours, theirs = softmax(features.double().numpy() / 0.5), softmax(raw / 0.5)
            expected += 0.2 * (theirs * np.log(theirs / ours)).sum(axis=1).mean() / 2
    assert loss == pytest.approx(expected, rel=1e-4)


def test_every_client_has_dimensions_of_its_own():
    method = make_method("ssd", width=8)
    size, seen = len(method.scaling), torch.zeros(len(method.scaling))
    for client in range(5):
        method.prepare(at(method, client, 5))
        own = method.scaling == 10.0
        assert own.sum() == size // 5
        seen += own
    assert seen.max() == 1


def test_more_clients_than_dimensions_are_refused_before_the_first_round():
    with pytest.raises(
        FedsslError, match=r"^method\.name: ssd gives each client dimensions of its own, and 40 clients"
    ):
        build(load_config("smoke+fedssd", TINY | {"partition.name": "iid", "partition.num_clients": 40}))


# --- FedX -------------------------------------------------------------------------------------------------------------


def test_relations_by_hand():
    """Three images: view 1 sees both others alike, view 2 one of them nearly alone: JS(½ ½, 1 0) = ½ log 4/3 + …."""
    others = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    one, two = torch.tensor([[1.0, 0.0]]).expand(3, 2), torch.tensor([[0.0, 1.0]]).expand(3, 2)
    found = relational_loss(one, two, others, 0.01)
    js = 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) + 0.5 * math.log(1 / 0.75)
    # Image 1: halves against one alone. Images 2 and 3 see image 1 and one more: view 1 the first alone, view 2 of
    # image 2 the first (0 against −1 in the other), of image 3 the second.
    assert found.item() == pytest.approx((js + 0.0 + math.log(2)) / 3, rel=1e-4)


def test_relations_against_numpy():
    z1, z2, others = (drawn(5, 4, seed=seed) for seed in range(3))
    total = 0.0
    for i in range(5):
        keep = [j for j in range(5) if j != i]
        a, b, o = (unit(t.double().numpy()) for t in (z1, z2, others))
        p, q = (softmax((rows[i] @ o[keep].T / 0.1)[None])[0] for rows in (a, b))
        m = (p + q) / 2
        total += 0.5 * (p * np.log(p / m)).sum() + 0.5 * (q * np.log(q / m)).sum()
    assert relational_loss(z1, z2, others, 0.1).item() == pytest.approx(total / 5, rel=1e-4)


def test_fedx_is_four_terms_with_the_received_encoder_frozen():
    method, (a, b) = make_method("fedx", temperature=0.2), views()
    received = Weights.of(make_method("fedx", seed=5).online_encoder)
    method.prepare(replace(at(method), encoder=received))
    method.train()
    assert Weights.of(method.global_encoder).digest() == received.digest()
    loss = method.loss([a, b])
    loss.backward()
    assert Weights.of(method.global_encoder).digest() == received.digest(), "no statistic moves with a client's images"
    assert all(parameter.grad is None for parameter in method.global_encoder.parameters())
    method.eval()
    z1, z2 = method.online_encoder(a), method.online_encoder(b)
    p1, p2, g1, g2 = method.predictor(z1), method.predictor(z2), method.global_encoder(a), method.global_encoder(b)
    expected = nt_xent(z1, z2, 0.2) + nt_xent(p1, g2, 0.2)
    expected += relational_loss(z1, z2, z1, 0.2) + relational_loss(p1, p2, g1, 0.2)
    assert method.loss([a, b]).item() == pytest.approx(expected.item(), rel=1e-5)


def test_fedx_takes_the_global_encoder_where_its_rule_starts_elsewhere():
    client = make_client(make_method("fedx"), ConstantMu(mu_encoder=1.0, mu_predictor=1.0))
    start = client.initial_global_weights()
    state, _ = client.train(None, TrainTask(0, 1, accepted_round=None, global_weights=start))
    sent = GlobalWeights(start.encoder.map(lambda _, t: t + 1 if t.is_floating_point() else t), start.predictor)
    client.train(state, TrainTask(0, 2, accepted_round=1, global_weights=sent))
    assert Weights.of(client.method.global_encoder).digest() == sent.encoder.digest()


# --- FedSC ------------------------------------------------------------------------------------------------------------


def test_spectral_loss_by_hand():
    """z1 = z2 = e1, e2: R = I/2; −2 + a · ½ + 2 (1 − a) · ½ tr(R̄)."""
    z, others = torch.eye(2), torch.tensor([[1.0, 7.0], [7.0, 3.0]])
    own = correlation(z, z)
    assert own.tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert spectral_loss(z, z, own, others, torch.tensor(0.25)).item() == pytest.approx(-2 + 0.125 + 1.5 * 2)


def test_projections_longer_than_the_bound_are_shortened():
    z = shortened(torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]]), 4.0)
    torch.testing.assert_close(z, torch.tensor([[1.2, 1.6], [0.6, 0.8], [0.0, 0.0]]))


def test_fedsc_against_numpy():
    method, both = make_method("fedsc").eval(), views()
    others = drawn(8, 8)
    method.prepare(at(method, round_number=6))
    method.receive({"correlation": 3 * others, "clients": torch.tensor(3)})
    with torch.no_grad():
        z = [method.online_encoder(view).double().numpy() for view in both]
        loss = method.loss(both).item()
    z = [one * np.minimum(1, 2 / np.linalg.norm(one, axis=1, keepdims=True)) for one in z]
    joint = np.concatenate(z)
    own, a = joint.T @ joint / len(joint), 1 - 0.8 * 5 / 9
    expected = -2 * np.trace(z[0] @ z[1].T) / 6 + a * (own**2).sum()
    expected += 2 * (1 - a) * np.trace(own @ others.double().numpy())
    assert loss == pytest.approx(expected, rel=1e-4)


def test_a_client_takes_its_own_matrix_off_the_sum_if_it_is_in_it():
    method = make_method("fedsc")
    mine, theirs = torch.full((8, 8), 2.0), torch.full((8, 8), 5.0)
    total = {"correlation": mine + theirs, "clients": torch.tensor(2)}
    method.own.copy_(mine)
    method.own_round.fill_(3)
    method.prepare(at(method, round_number=4))
    method.receive(total)
    assert torch.equal(method.others, theirs)
    assert method.alpha.item() == pytest.approx(1 - 0.8 * 3 / 9)
    method.prepare(at(method, round_number=5))  # the sum of a round in which it was not
    method.receive(total)
    assert torch.equal(method.others, (mine + theirs) / 2)
    method.prepare(at(method, round_number=4))
    method.receive({"correlation": mine, "clients": torch.tensor(1)})  # alone
    assert (method.others.abs().max().item(), method.alpha.item()) == (0.0, 1.0)


@pytest.mark.parametrize(("rounds", "alphas"), [(5, [1.0, 0.8, 0.6, 0.4, 0.2]), (2, [1.0, 0.2]), (1, [1.0])])
def test_alpha_falls_from_1_to_its_end_over_the_rounds(rounds, alphas):
    method, found = make_method("fedsc"), []
    for number in range(1, rounds + 1):
        method.prepare(at(method, round_number=number, rounds=rounds))
        found.append(method.share)
    assert found == pytest.approx(alphas)


def test_what_travels_is_the_mean_matrix_of_the_round_with_noise_and_then_its_sum(tmp_path):
    outcomes, store = run(tmp_path, "replace", "fedsc", rounds=2)
    sent = [result.payload["correlation"] for result in outcomes[0].results]
    assert [tuple(one.shape) for one in sent] == [(8, 8)] * 4
    pooled = outcomes[0].state.payload
    torch.testing.assert_close(pooled["correlation"], torch.stack(sent).sum(dim=0))
    assert pooled["clients"].item() == 4
    kept = store.load(2, 1).memory
    assert torch.equal(kept["own"], sent[2])
    assert kept["own_round"].item() == 1
    quiet, loud = (make_client(make_method("fedsc", noise=noise), Replace()) for noise in (0.0, 0.5))
    task = TrainTask(0, 1, accepted_round=None, global_weights=quiet.initial_global_weights())
    (_, plain), (_, noisy) = quiet.train(None, task), loud.train(None, task)
    noise = noisy.payload["correlation"] - plain.payload["correlation"]
    assert 0.3 < noise.std().item() < 0.7
    assert torch.allclose(plain.payload["correlation"], plain.payload["correlation"].T)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, "got nothing, expected correlation: torch.float32 of shape (8, 8)"),
        ({"projections": torch.ones(8, 8)}, "got projections: torch.float32 of shape (8, 8), expected correlation: "),
        ({"correlation": torch.ones(8, 7)}, "got correlation: torch.float32 of shape (8, 7), expected correlation: "),
        ({"correlation": torch.full((8, 8), 4.1)}, "correlation: a value beyond 4.01"),
        ({"correlation": torch.full((8, 8), math.nan)}, "correlation: a value beyond 4.01"),
        ({"correlation": torch.full((8, 8), -4.0)}, ""),
    ],
)
def test_a_matrix_that_no_client_can_have_is_refused(payload, problem):
    found = make_method("fedsc").payload_problem(payload)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_that_features_leave_is_said_and_refused_where_privacy_forbids_it():
    (warning,) = build_warnings(load_config("smoke+fedsc"))
    assert warning.startswith("FEATURES LEAVE THE CLIENTS: with fedsc every client also sends the correlation matrix")
    private = {"privacy.name": "client-dp", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 1.0}
    private |= {"aggregation.batchnorm": "local-statistics"}
    with pytest.raises(FedsslError, match=r"^privacy\.name: fedsc also sends the correlation matrix"):
        load_config("smoke+fedsc", private)
    load_config("smoke+fedx", private)


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ssd", "fedx", "fedsc"])
def test_a_run_that_is_stopped_ends_with_the_same_bits(tmp_path, name):
    """3 of 6 clients in each round."""
    settings = QUICK | {"method.name": name, "update_rule.name": "replace"}
    experiment("BYOL + FedEMA", **settings).run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        experiment("BYOL + FedEMA", **settings).run(tmp_path / "part", Stops(2))
    experiment("BYOL + FedEMA", **settings).run(tmp_path / "part")
    assert everything(tmp_path / "part") == everything(tmp_path / "whole")


def test_worker_processes_know_whose_round_it_is(tmp_path):
    """Client, round and payload reach the method in another process as they do in this one."""
    settings = TINY | {"evaluation.every": 0, "workers": 2}
    for method in ("ssd", "fedsc"):
        here, there = (
            load(f"smoke+fed{method.removeprefix('fed')}", settings | {"engine": engine}).run(
                tmp_path / f"{method}-{engine}"
            )
            for engine in ("in-process", "processes")
        )
        assert here.summary["weights_sha256"] == there.summary["weights_sha256"]
