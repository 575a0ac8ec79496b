"""What local training adds to a loss: by hand, in numpy, and with every method."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.experiment.config.layers import load_config
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.federation.messages import TrainTask
from fedssl.federation.model_communication import ConstantMu
from fedssl.federation.regularizers import (
    SLICES,
    RegularizedLoss,
    distance_to_sphere,
    feature_correlation,
    proximal_term,
)
from fedssl.methods import METHODS
from tests.helpers.small import TRAINING, digests, make_client, make_images, make_method, run

ALL = {"decorrelation": 0.1, "uniformity": 0.01, "proximal": 0.01}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def views(count=6):
    return list(torch.rand(2, count, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


# --- FedDecorr --------------------------------------------------------------------------------------------------------


def test_correlation_by_hand():
    """Columns (1, 1, -1, -1), (2, 2, -2, -2), (1, -1, 1, -1): the first two correlate fully, the third with none."""
    features = torch.tensor([[1.0, 2.0, 1.0], [1.0, 2.0, -1.0], [-1.0, -2.0, 1.0], [-1.0, -2.0, -1.0]])
    assert feature_correlation(features).item() == pytest.approx(2 / 6)
    assert feature_correlation(features[:, [0, 2]] + 5).item() == pytest.approx(0.0, abs=1e-12)


def test_correlation_is_numpys():
    features = drawn(20, 7) * torch.arange(1, 8) + drawn(20, 1, seed=1)
    expected = np.corrcoef(features.numpy(), rowvar=False) ** 2
    assert feature_correlation(features).item() == pytest.approx(expected[~np.eye(7, dtype=bool)].mean(), rel=1e-4)


def test_a_feature_that_never_changes_correlates_with_none_and_gives_finite_gradients():
    features = drawn(8, 3)
    features[:, 1] = 4.0
    features.requires_grad_()
    loss = feature_correlation(features)
    loss.backward()
    assert loss.item() <= 2 / 6
    assert torch.isfinite(features.grad).all()
    assert feature_correlation(drawn(8, 1)).item() == 0.0


# --- FedU²'s uniformity -----------------------------------------------------------------------------------------------


def test_distance_to_the_sphere_is_the_plain_sliced_distance():
    projections = drawn(9, 4)
    torch.manual_seed(3)
    found = distance_to_sphere(projections).item()
    torch.manual_seed(3)
    random = torch.randn(9 + SLICES, 4).double().numpy()
    sphere = random[:9] / np.linalg.norm(random[:9], axis=1, keepdims=True)
    ours = projections.double().numpy()
    ours = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    total = [np.mean((np.sort(ours @ way) - np.sort(sphere @ way)) ** 2) for way in random[9:]]
    assert found == pytest.approx(np.mean(total), rel=1e-5)


def test_in_one_dimension_the_distance_to_the_sphere_can_be_counted():
    """All at +1, the sphere at ±1: along a direction t as many as are at −1 are moved by 2t."""
    torch.manual_seed(5)
    random = torch.randn(6 + SLICES, 1)
    wrong = (random[:6] < 0).float().mean() * (2 * random[6:]).square().mean()
    torch.manual_seed(5)
    assert distance_to_sphere(torch.full((6, 1), 0.3)).item() == pytest.approx(wrong.item())


def test_a_collapsed_batch_is_farther_from_the_sphere_than_one_that_is_spread():
    torch.manual_seed(0)
    spread = distance_to_sphere(drawn(64, 16))
    assert distance_to_sphere(drawn(1, 16).expand(64, 16)) > 3 * spread


# --- FedProx ----------------------------------------------------------------------------------------------------------


def test_proximal_term_by_hand():
    """½ (1² + 2² + 3²)."""
    ours = [torch.tensor([1.0, 2.0]), torch.tensor([[5.0]])]
    assert proximal_term(ours, [torch.zeros(2), torch.tensor([[2.0]])]).item() == 7.0


def test_a_proximal_step_adds_mu_times_the_distance_to_every_gradient():
    method, (a, b) = make_method("byol"), views()
    away = tuple(Weights.of(module).map(lambda _, t: t + 0.5) for module in (method.online_encoder, method.predictor))
    parameters = [*method.online_encoder.parameters(), *method.predictor.parameters()]
    plain = torch.autograd.grad(method.loss([a, b]), parameters)
    loss = RegularizedLoss(method, away, decorrelation=0, uniformity=0, proximal=0.2)
    for before, after in zip(plain, torch.autograd.grad(loss([a, b]), parameters), strict=True):
        torch.testing.assert_close(after, before + 0.2 * torch.full_like(before, -0.5), rtol=1e-4, atol=1e-5)


def test_a_client_is_held_near_what_the_server_sent_not_near_where_its_rule_lets_it_start():
    """Rule constant-mu with mu = 1: it starts from its own weights; a strong term then draws it to the global ones."""
    training = replace(TRAINING, epochs=4, lr=0.1, sgd_momentum=0.0, weight_decay=0.0, proximal=5.0)
    client = make_client(make_method(), ConstantMu(mu_encoder=1.0, mu_predictor=1.0), training=training)
    start = client.initial_global_weights()
    state, _ = client.train(None, TrainTask(0, 1, accepted_round=None, global_weights=start))
    other = type(start)(start.encoder.map(lambda _, t: t + 1 if t.is_floating_point() else t), start.predictor)
    state, _ = client.train(state, TrainTask(0, 2, accepted_round=1, global_weights=other))
    moved = state.weights.online.parameters["projector.0.weight"] - start.encoder.parameters["projector.0.weight"]
    assert moved.mean().item() > 0.8


# --- together ---------------------------------------------------------------------------------------------------------


def test_a_loss_with_every_term_is_the_sum_of_them():
    method, both = make_method("simsiam").eval(), views()
    h = [method.online_encoder.backbone(view) for view in both]
    z = [method.online_encoder.projector(features) for features in h]
    torch.manual_seed(2)
    terms = 0.3 * sum(map(feature_correlation, h)) / 2 + 0.7 * sum(map(distance_to_sphere, z)) / 2
    torch.manual_seed(2)
    loss = RegularizedLoss(method, None, decorrelation=0.3, uniformity=0.7, proximal=1.0)
    assert loss(both).item() == pytest.approx((method.loss(both) + terms).item(), rel=1e-5)
    assert not method.online_encoder.backbone._forward_hooks, "nobody watches when the loss is made"


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].whole_images])
def test_every_term_trains_every_method_and_changes_what_it_learns(name):
    plain = {}
    # Of a masked image there is no vector to decorrelate or to spread: only FedProx's term goes with it.
    fitting = {term: weight for term, weight in ALL.items() if name != "mae" or term == "proximal"}
    for terms in ({}, *({term: weight} for term, weight in fitting.items()), fitting | {"precision": "bf16"}):
        method = make_method(name)
        train_locally(method, make_images(16).pixels, Recipe(), LocalTraining(epochs=2, batch_size=8, **terms), 0.05, 7)
        digest = Weights.of(method.online_encoder).digest()
        assert digest not in plain, f"{terms} changes nothing"
        plain[digest] = terms


@pytest.mark.parametrize("term", ["decorrelation", "uniformity"])
def test_terms_of_vectors_are_refused_where_a_method_makes_none(term):
    training = LocalTraining(epochs=1, batch_size=8, **{term: 0.1})
    with pytest.raises(FedsslError, match=rf"local_training\.{term}: this method makes no vector .*set it to 0"):
        train_locally(make_method("mae"), make_images(16).pixels, Recipe(), training, 0.05, 7)


def test_without_them_the_loss_is_the_methods_own():
    method = make_method()
    assert LocalTraining().loss_of(method, None) == method.loss


def test_rounds_with_all_terms_repeat_bit_for_bit(tmp_path):
    def rounds(folder):
        client = make_client(make_method(), ConstantMu(), training=replace(TRAINING, **ALL))
        return [digests(outcome) for outcome in run(folder, ConstantMu(), client=client)[0]]

    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")


def test_what_cannot_be_watched_is_refused_in_words():
    with pytest.raises(FedsslError, match=r"^local_training\.compile: a compiled loss cannot be watched: leave it out"):
        LocalTraining(compile=True, decorrelation=0.1).check(torch.device("cpu"))
    method = make_method()
    method.loss = lambda views: method.online_encoder.backbone(views[0]).sum()
    with pytest.raises(FedsslError, match=r"^local_training\.uniformity: this method makes no vector of a whole image"):
        train_locally(method, make_images(8).pixels, Recipe(), LocalTraining(batch_size=8, uniformity=0.1), 0.1, 0)


@pytest.mark.parametrize("term", ["decorrelation", "uniformity"])
def test_a_method_that_never_sees_whole_images_says_so_before_the_first_round(term):
    vit = {"network.name": "vit-tiny"}
    with pytest.raises(FedsslError, match=rf"^local_training\.{term}: mae makes no vector of a whole image"):
        load_config("smoke+fedmae", vit | {f"local_training.{term}": 0.1})
    load_config("smoke+fedmae+fedprox", vit)


def test_the_algorithms_put_their_term_on_the_method_before_them():
    config = load_config("smoke+fedsimclr+feddecorr+fedprox")
    assert (config.method.name, config.update_rule.name) == ("simclr", "replace")
    assert (config.local_training.decorrelation, config.local_training.proximal) == (0.1, 0.01)
