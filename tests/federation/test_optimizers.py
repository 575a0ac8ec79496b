"""Optimizers, parameter groups, schedules, clipping and accumulation, each against numbers computed another way."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import torch_stream
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.experiment.config.layers import load_config
from fedssl.federation.local_training import LocalTraining, Part, Stepper, train_locally
from fedssl.federation.optimizers import LARS, MAKERS, parameter_groups
from fedssl.methods import METHODS
from fedssl.networks.blocks import blocks_of, frozen_names
from tests.helpers.small import make_images, make_method


def gradients(shape, steps=4):
    return np.random.default_rng(3).normal(size=(steps, *shape))


def moved(optimizer_of, start, steps, scale=1.0):
    """Where a torch optimizer takes a tensor with these gradients."""
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = optimizer_of([{"params": [parameter], "scale": scale}])
    for gradient in steps:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach().numpy()


def test_lars_by_hand():
    """w = (3, 4), ∇ = (0, 1), no decay: ‖w‖ = 5, ‖∇‖ = 1, so the step is 0.1 · 0.02 · 5 · ∇ = (0, 0.01)."""
    end = moved(
        lambda groups: LARS(groups, lr=0.1, momentum=0.9, weight_decay=0.0, trust=0.02),
        np.array([[3.0, 4.0]]),
        [np.array([[0.0, 1.0]])],
    )
    np.testing.assert_allclose(end, [[3.0, 3.99]], rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 3, 3), (5,)])
def test_lars_against_numpy(shape):
    lr, momentum, decay, trust = 0.3, 0.9, 0.02, 0.01
    start = np.random.default_rng(1).normal(size=shape)
    weights, speed = start.copy(), np.zeros(shape)
    for gradient in gradients(shape):
        update = gradient + decay * weights
        if len(shape) > 1:
            update = update * trust * np.sqrt((weights**2).sum()) / np.sqrt((update**2).sum())
        speed = momentum * speed + update
        weights = weights - lr * speed
    made = moved(
        lambda groups: LARS(groups, lr=lr, momentum=momentum, weight_decay=decay, trust=trust), start, gradients(shape)
    )
    np.testing.assert_allclose(made, weights, rtol=1e-12)


def test_lars_moves_a_matrix_of_zeros_as_sgd_does():
    end = moved(
        lambda groups: LARS(groups, lr=0.5, momentum=0.0, weight_decay=0.0, trust=0.1),
        np.zeros((1, 2)),
        [np.array([[2.0, 0.0]]), np.zeros((1, 2))],
    )
    np.testing.assert_array_equal(end, [[-1.0, 0.0]])


def test_adamw_against_numpy():
    settings = LocalTraining(optimizer="adamw", lr=0.01, weight_decay=0.1, beta1=0.8, beta2=0.95)
    start = np.random.default_rng(1).normal(size=(3, 4))
    weights, mean, square = start.copy(), np.zeros((3, 4)), np.zeros((3, 4))
    for number, gradient in enumerate(gradients((3, 4)), start=1):
        weights = weights * (1 - 0.01 * 0.1)
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        corrected = mean / (1 - 0.8**number), square / (1 - 0.95**number)
        weights = weights - 0.01 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    made = moved(lambda groups: MAKERS["adamw"](groups, settings, 0.01, True), start, gradients((3, 4)))
    np.testing.assert_allclose(made, weights, rtol=1e-10)


# --- groups ----------------------------------------------------------------------------------------------------------


def test_one_group_with_everything_unless_tensors_differ():
    method = make_method()
    (group,) = parameter_groups(method, LocalTraining())
    assert [id(p) for p in group["params"]] == [id(p) for p in method.trained_parameters()]


def test_norms_and_biases_do_not_decay():
    groups = parameter_groups(make_method(), LocalTraining(weight_decay_on="weights"))
    assert [(group["scale"], group.get("weight_decay")) for group in groups] == [(1.0, None), (1.0, 0.0)]
    assert {p.ndim for p in groups[0]["params"]} == {2, 4}
    assert {p.ndim for p in groups[1]["params"]} == {1}
    method = make_method("simsiam")
    before = Weights.of(method)
    settings = LocalTraining(epochs=1, batch_size=8, weight_decay=0.5, weight_decay_on="weights", sgd_momentum=0.0)
    method.loss = lambda views: method.online_encoder(views[0]).sum() * 0  # gradients of zero: only decay moves
    train_locally(method, make_images(8).pixels, Recipe(), settings, lr=0.1, seed=0)
    for name, tensor in Weights.of(method).parameters.items():
        if name.startswith("online_encoder"):
            factor = 1 - 0.1 * 0.5 if tensor.ndim > 1 else 1.0
            torch.testing.assert_close(tensor, before.parameters[name] * factor, rtol=1e-6, atol=0)


def test_rates_fall_with_depth():
    method = make_method()
    stepper = Stepper(method, LocalTraining(layer_decay=0.5), lr=0.8, device=torch.device("cpu"))
    rates = {id(p): group["lr"] for group in stepper.optimizer.param_groups for p in group["params"]}
    of = {name: rates[id(p)] for name, p in method.named_parameters() if p.requires_grad}
    assert of["predictor.0.weight"] == of["online_encoder.projector.3.bias"] == 0.8
    assert [of[f"online_encoder.backbone.conv{n}.weight"] for n in (4, 3, 2, 1)] == [0.4, 0.2, 0.1, 0.05]
    assert of["online_encoder.backbone.bn1.bias"] == 0.05
    assert len(of) == sum(len(group["params"]) for group in stepper.optimizer.param_groups)


# --- schedules -------------------------------------------------------------------------------------------------------


def test_warm_up_in_rounds_by_hand():
    training = LocalTraining(lr=0.9, schedule="constant", warmup_rounds=2)
    assert [training.learning_rate(r, 10) for r in (1, 2, 3, 4)] == pytest.approx([0.3, 0.6, 0.9, 0.9])
    by_step = replace(training, schedule_per="step")
    rates = [by_step.learning_rate(r, 10, step, 2) for r in (1, 2, 3) for step in (0, 1)]
    assert rates == pytest.approx([0.9 * n / 5 for n in (1, 2, 3, 4, 5, 5)])
    cosine = replace(training, schedule="cosine")
    assert cosine.learning_rate(2, 4) == pytest.approx(0.6 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_warm_up_in_steps_is_of_every_round():
    training = LocalTraining(lr=0.8, schedule="constant", warmup_steps=3)
    assert [training.learning_rate(7, 10, step, 9) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert training.learning_rate(7, 10) == 0.8, "a round's own rate"


def test_the_cosine_inside_a_round_joins_the_rounds():
    per_step, per_round = LocalTraining(lr=1.0, schedule_per="step"), LocalTraining(lr=1.0)
    assert per_step.learning_rate(3, 10, 0, 4) == per_round.learning_rate(3, 10)
    middle = 0.5 * (1 + math.cos(math.pi * 2.5 / 10))
    assert per_step.learning_rate(3, 10, 2, 4) == pytest.approx(middle)
    assert per_round.learning_rate(3, 10, 2, 4) == per_round.learning_rate(3, 10)


def test_training_uses_the_rate_of_each_step():
    """Two steps with rates 0.1 and 0 are one step."""
    pixels, one = make_images(16).pixels, make_method("simsiam")
    train_locally(one, pixels, Recipe(), LocalTraining(epochs=1, batch_size=8), lambda s, _: (0.1, 0.0)[s], seed=4)
    two = make_method("simsiam")
    order = torch.randperm(16, generator=torch_stream(4, "order"))
    stepper = Stepper(two, LocalTraining(), lr=0.1, device=torch.device("cpu"))
    two.train()
    stepper.step(make_views(pixels[order[:8]], Recipe(), torch_stream(4, "augment")))
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(ours, theirs)


# --- clipping and accumulation ---------------------------------------------------------------------------------------


def views_of(count, seed=0):
    return make_views(make_images(count).pixels, Recipe(), torch_stream(seed, "augment"))


def step_of(settings, views):
    """By how far each parameter moved in one step of plain SGD with rate 1."""
    method = make_method("simsiam")
    before = [p.detach().clone() for p in method.trained_parameters()]
    Stepper(method, settings, lr=1.0, device=torch.device("cpu")).step(views)
    return torch.cat([(old - p.detach()).flatten() for old, p in zip(before, method.trained_parameters(), strict=True)])


def test_clipping_makes_the_step_as_long_as_it_says():
    plain = LocalTraining(weight_decay=0.0, sgd_momentum=0.0)
    whole, clipped = step_of(plain, views_of(8)), step_of(replace(plain, clip_gradient=0.01), views_of(8))
    assert float(whole.norm()) > 0.02
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(clipped / clipped.norm(), whole / whole.norm(), rtol=1e-3, atol=1e-4)
    assert torch.equal(step_of(replace(plain, clip_gradient=1e6), views_of(8)), whole)


def test_groups_of_batches():
    assert [Part.at(step, 5, 2) for step in range(5)] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
    assert [Part.at(step, 2, 1) for step in range(2)] == [(0, 1), (0, 1)]
    assert Part.at(0, 1, 8) == (0, 1), "fewer batches than are to be gathered"


def test_accumulated_batches_make_one_step_with_their_mean_gradient():
    settings = LocalTraining(weight_decay=0.0, sgd_momentum=0.0, accumulate=2)
    method, twin = make_method("byol", momentum=0.5), make_method("byol", momentum=0.5)
    batches = [views_of(8, seed) for seed in (1, 2)]
    stepper = Stepper(method, settings, lr=0.1, device=torch.device("cpu"))
    target = Weights.of(method.target_encoder).parameters
    stepper.step(batches[0], Part(0, 2))
    assert all(torch.equal(t, target[n]) for n, t in Weights.of(method.target_encoder).parameters.items())
    stepper.step(batches[1], Part(1, 2))
    trained = [*twin.trained_parameters()]
    each = [torch.autograd.grad(twin.loss(views), trained) for views in batches]
    with torch.no_grad():
        for parameter, one, two in zip(trained, *each, strict=True):
            parameter -= 0.1 * (one + two) / 2
    for ours, by_hand in zip(method.trained_parameters(), trained, strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(t, target[n]) for n, t in Weights.of(method.target_encoder).parameters.items())


def test_an_epoch_of_accumulated_batches_counts_batches():
    calls = []
    settings = LocalTraining(epochs=2, batch_size=8, accumulate=4)
    report = train_locally(
        make_method(), make_images(24).pixels, Recipe(), settings, 0.1, 0, lambda *c, images: calls.append(images)
    )
    assert (report.steps, calls) == (6, [8, 16, 24, 32, 40, 48])


# --- every method, and what is refused -------------------------------------------------------------------------------

OTHERS = LocalTraining(
    epochs=1, batch_size=8, optimizer="adamw", weight_decay_on="weights", clip_gradient=1.0, accumulate=2, freeze=2,
    layer_decay=0.7, schedule_per="step", warmup_steps=2,
)  # fmt: skip


@pytest.mark.parametrize("settings", [OTHERS, replace(OTHERS, optimizer="lars", lr=0.5)], ids=["adamw", "lars"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_with_all_of_it_and_frozen_blocks_stay(name, settings):
    method = make_method(name)
    backbone, before = method.online_encoder.backbone, Weights.of(method).tensors()
    settings = replace(settings, freeze=min(2, len(blocks_of(backbone)) - 1))
    report = train_locally(method, make_images(32).pixels, Recipe(), settings, lambda s, n: 0.01, seed=0)
    assert math.isfinite(report.loss)
    changed = {n for n, tensor in Weights.of(method).tensors().items() if not torch.equal(tensor, before[n])}
    frozen = frozen_names(backbone, settings.freeze)
    assert frozen
    assert not changed & {f"{encoder}.backbone.{n}" for n in frozen for encoder in ("online_encoder", "target_encoder")}
    trained = {f"online_encoder.backbone.{n}" for n, p in backbone.named_parameters() if p.ndim > 1 and n not in frozen}
    assert trained
    assert trained <= changed


@pytest.mark.parametrize("optimizer", MAKERS)
def test_a_step_never_asks_its_device_for_a_value(optimizer):
    method = make_method().to("meta")
    views = make_views(make_images(8).pixels.to("meta"), Recipe(), torch_stream(0, "augment"))
    settings = replace(OTHERS, optimizer=optimizer, accumulate=1)
    assert Stepper(method, settings, lr=0.1, device=torch.device("meta")).step(views).shape == ()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"local_training.beta1": 0.5}, r"local_training\.beta1: sgd has no such setting, only adamw"),
        ({"local_training.trust": 0.1}, r"local_training\.trust: sgd has no such setting, only lars"),
        (
            {"local_training.optimizer": "adamw", "local_training.sgd_momentum": 0.5},
            r"local_training\.sgd_momentum: adamw has no such setting, only sgd and lars",
        ),
        ({"local_training.optimizer": "adam"}, r"local_training\.optimizer: 'adam' is not .*adamw"),
        ({"local_training.layer_decay": 0.0}, r"local_training\.layer_decay: 0\.0 is not"),
        ({"local_training.warmup_rounds": -1}, r"local_training\.warmup_rounds: -1 is not"),
        ({"local_training.clip_gradient": 0}, r"local_training\.clip_gradient: 0 is not"),
        ({"local_training.accumulate": 0}, r"local_training\.accumulate: 0 is not"),
    ],
)
def test_bad_values_are_named(settings, text):
    with pytest.raises(FedsslError, match=text):
        load_config("smoke", settings)
