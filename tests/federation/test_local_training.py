import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.seeding import global_stream, torch_stream
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.records.verdict import COLLAPSED_BELOW
from fedssl.federation.local_training import LocalTraining, Stepper, train_locally, training_seed
from fedssl.methods import METHODS
from fedssl.methods.base import SiameseMethod
from fedssl.methods.losses import byol_loss, info_nce, nt_xent
from fedssl.networks.heads import Encoder
from tests.helpers.small import make_images, make_method


def test_cosine_schedule_by_hand():
    training = LocalTraining(lr=0.032, schedule="cosine")
    assert training.learning_rate(1, 100) == 0.032
    assert training.learning_rate(51, 100) == pytest.approx(0.016)
    assert training.learning_rate(26, 100) == pytest.approx(0.5 * 0.032 * (1 + math.sqrt(0.5)))
    assert training.learning_rate(100, 100) == pytest.approx(0.5 * 0.032 * (1 + math.cos(math.pi * 0.99)))
    assert LocalTraining(lr=0.5, schedule="constant").learning_rate(77, 100) == 0.5


def test_paper_defaults():
    assert LocalTraining() == LocalTraining(
        epochs=5, batch_size=128, lr=0.032, sgd_momentum=0.9, weight_decay=5e-4, schedule="cosine"
    )


@pytest.mark.parametrize(("images", "steps"), [(2, 1), (3, 1), (127, 1), (128, 1), (129, 1), (255, 1), (256, 2)])
def test_short_last_batch_is_dropped_and_a_small_client_trains_on_all_it_has(images, steps):
    assert LocalTraining(batch_size=128).steps_per_epoch(images) == steps


@pytest.mark.parametrize(("images", "steps", "seen"), [(2, 2, 4), (7, 2, 14), (8, 2, 16), (9, 2, 16), (16, 4, 32)])
def test_any_number_of_images_from_two_trains(images, steps, seen):
    report = train_locally(
        make_method(), make_images(16).pixels[:images], Recipe(), LocalTraining(epochs=2, batch_size=8), 0.01, seed=0
    )
    assert (report.steps, report.images) == (steps, seen)
    assert math.isfinite(report.loss)


@pytest.mark.parametrize("images", [0, 1])
def test_too_few_images_are_refused(images):
    with pytest.raises(FedsslError, match="BatchNorm needs at least 2"):
        train_locally(make_method(), make_images(16).pixels[:images], Recipe(), LocalTraining(), 0.01, seed=0)


def test_one_step_equals_sgd_written_by_hand():
    """One batch: the same views, a plain SGD step with weight decay, then the EMA of the target."""
    pixels = make_images(8).pixels
    training = LocalTraining(epochs=1, batch_size=8, sgd_momentum=0.9, weight_decay=0.01)
    method, twin = make_method("byol", momentum=0.9), make_method("byol", momentum=0.9)
    train_locally(method, pixels, Recipe(), training, lr=0.1, seed=5)

    order = torch.randperm(8, generator=torch_stream(5, "order"))
    views = make_views(pixels[order], Recipe(), torch_stream(5, "augment"))
    twin.loss(views).backward()
    with torch.no_grad():
        for parameter in [*twin.online_encoder.parameters(), *twin.predictor.parameters()]:
            parameter -= 0.1 * (parameter.grad + 0.01 * parameter)
        for target, online in zip(twin.target_encoder.parameters(), twin.online_encoder.parameters(), strict=True):
            target.mul_(0.9).add_(0.1 * online)
    for ours, by_hand in zip(method.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-5, atol=1e-6)


def test_same_seed_same_bits_other_seed_other_bits():
    def trained(seed):
        method = make_method("mocov2")
        train_locally(method, make_images(32).pixels, Recipe(), LocalTraining(epochs=2, batch_size=8), 0.05, seed)
        return Weights.of(method).digest()

    assert trained(1) == trained(1)
    assert trained(1) != trained(2)


def test_optimizer_is_new_every_round():
    """Two rounds of one step without momentum carried over equal two single steps with momentum 0."""
    pixels = make_images(8).pixels
    ends = []
    for momentum in (0.0, 0.9):
        method = make_method("simsiam")
        for seed in (1, 2):
            training = LocalTraining(epochs=1, batch_size=8, sgd_momentum=momentum)
            train_locally(method, pixels, Recipe(), training, 0.1, seed)
        ends.append(Weights.of(method).digest())
    assert ends[0] == ends[1]


def test_every_image_is_seen_once_an_epoch():
    seen = []

    class Spy(SiameseMethod):
        def loss(self, views):
            seen.extend(views[0].mean(dim=(1, 2, 3)).tolist())
            return self.online_encoder(views[0]).sum() * 0

    method = Spy(Encoder(nn.Flatten(), nn.Linear(3 * 4 * 4, 2)))
    pixels = (torch.arange(16, dtype=torch.uint8) * 10)[:, None, None, None].expand(16, 3, 4, 4).contiguous()
    plain = Recipe(jitter=0.0, grey=0.0)
    train_locally(method, pixels, plain, LocalTraining(epochs=2, batch_size=4), 0.1, seed=0)
    first, second = [round(v * 255 / 10) for v in seen[:16]], [round(v * 255 / 10) for v in seen[16:]]
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second


def test_global_random_state_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train_locally(make_method(), make_images(16).pixels, Recipe(), LocalTraining(epochs=1, batch_size=8), 0.1, 0)
    assert torch.equal(torch.rand(2), expected)


def test_progress_counts():
    calls = []

    def record(text, done, total, images):
        calls.append((done, total, images))

    training = LocalTraining(epochs=2, batch_size=8)
    train_locally(make_method(), make_images(20).pixels, Recipe(), training, 0.1, 0, record)
    assert calls == [(1, 4, 8), (2, 4, 16), (3, 4, 24), (4, 4, 32)]


def test_training_seed_depends_on_run_client_and_round():
    assert len({training_seed(s, c, r) for s in range(3) for c in range(3) for r in range(3)}) == 27


# --- collapse --------------------------------------------------------------------------------------------------------


def spread_after(method, epochs, lr=0.1, **settings):
    module = make_method(method, width=8, **settings)
    training = LocalTraining(epochs=epochs, batch_size=32, lr=lr, weight_decay=0.0)
    return train_locally(module, make_images(96).pixels, Recipe(), training, lr, seed=0).feature_std


def test_simsiam_without_stop_gradient_collapses_and_byol_without_it_does_not():
    """The paper's figure on stop-gradient, as the spread of normalised features."""
    assert spread_after("simsiam", 20) > 0.5
    assert spread_after("simsiam", 20, stop_gradient=False) < COLLAPSED_BELOW
    assert spread_after("byol", 20, stop_gradient=False) > 0.5


def test_without_predictor_features_collapse():
    assert spread_after("simsiam", 15, predictor=False) < COLLAPSED_BELOW
    assert spread_after("byol", 15, predictor=False) < COLLAPSED_BELOW
    assert spread_after("byol", 15) > 0.5


# --- the fast path against the plain one -----------------------------------------------------------------------------


def plain_training(method, pixels, settings, lr, seed, memory_format):
    """The same training as a reader would write it, one tensor at a time; returns the loss of every step."""
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    velocity = [torch.zeros_like(parameter) for parameter in trained]
    order_stream, augment_stream = torch_stream(seed, "order"), torch_stream(seed, "augment")
    losses = []
    method.train()
    for _ in range(settings.epochs):
        order = torch.randperm(len(pixels), generator=order_stream)
        method.start_epoch()
        for chosen in order.split(settings.batch_size)[: len(pixels) // settings.batch_size]:
            views = make_views(pixels[chosen], Recipe(), augment_stream, method.view_groups)
            loss = method.loss([view.contiguous(memory_format=memory_format) for view in views])
            gradients = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                for parameter, gradient, speed in zip(trained, gradients, velocity, strict=True):
                    speed.mul_(settings.sgd_momentum).add_(gradient + settings.weight_decay * parameter)
                    parameter -= lr * speed
                if method.target_encoder is not None:
                    pairs = zip(method.target_encoder.parameters(), method.online_encoder.parameters(), strict=True)
                    for target, online in pairs:
                        target.mul_(method.momentum).add_((1 - method.momentum) * online)
            losses.append(loss.item())
    return losses


def seen_losses(method, *arguments):
    """The loss of every step of `train_locally`, which itself looks at their mean only."""
    losses, of_views = [], method.loss
    method.loss = lambda *views: losses.append(of_views(*views)) or losses[-1]
    report = train_locally(method, *arguments)
    assert report.steps == len(losses)
    return [loss.item() for loss in losses], report


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_those_of_a_plain_loop(name):
    """Whatever makes the loop fast must not change what is computed: 12 steps, each to the last digits of a float."""
    settings, pixels = LocalTraining(epochs=3, batch_size=8), make_images(36).pixels
    # Rounding differs between processors and grows with every step, faster where few images push each other apart.
    lr, rel = 0.001 if name in ("barlow", "align-uniform", "ssd", "fedsc") else 0.01, 1e-4
    with global_stream(7, "dropout"):
        plain = plain_training(make_method(name, width=8), pixels, settings, lr, 7, torch.channels_last)
    losses, report = seen_losses(make_method(name, width=8), pixels, Recipe(), settings, lr, 7)
    assert losses == pytest.approx(plain, rel=rel)
    assert report.loss == pytest.approx(sum(plain[-4:]) / 4, rel=rel)


@pytest.mark.parametrize("name", METHODS)
def test_channels_last_trains_as_row_major_memory_does(name):
    """Other kernels, so other rounding, which grows from step to step: the first steps must agree."""
    settings, pixels = LocalTraining(epochs=1, batch_size=8), make_images(24).pixels
    with global_stream(7, "dropout"):
        plain = plain_training(make_method(name, width=8), pixels, settings, 0.03, 7, torch.contiguous_format)
    method = make_method(name, width=8).to(memory_format=torch.channels_last)
    losses, _ = seen_losses(method, pixels, Recipe(), settings, 0.03, 7)
    assert losses[0] == pytest.approx(plain[0], rel=1e-5)
    assert losses == pytest.approx(plain, rel=1e-3)


def test_two_threads_train_as_one_does():
    """Sums are split otherwise, so bits may differ; the losses may not, beyond rounding."""
    settings, pixels = LocalTraining(epochs=1, batch_size=16), make_images(48, size=32).pixels
    one, _ = seen_losses(make_method(width=16), pixels, Recipe(), settings, 0.03, 7)
    torch.set_num_threads(2)
    try:
        two, _ = seen_losses(make_method(width=16), pixels, Recipe(), settings, 0.03, 7)
    finally:
        torch.set_num_threads(1)
    assert two[0] == pytest.approx(one[0], rel=1e-5)
    assert two == pytest.approx(one, rel=1e-3)


# --- options for GPUs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_bf16_runs_every_method_and_leaves_weights_and_memory_in_float32(name):
    settings, pixels = LocalTraining(epochs=1, batch_size=8), make_images(16).pixels
    method = make_method(name, width=8)
    losses, report = seen_losses(method, pixels, Recipe(), replace(settings, precision="bf16"), 0.01, 7)
    exact, _ = seen_losses(make_method(name, width=8), pixels, Recipe(), settings, 0.01, 7)
    assert losses[0] == pytest.approx(exact[0], rel=0.03)
    assert losses != exact, "nothing ran in lower precision"
    assert math.isfinite(report.feature_std)
    assert {tensor.dtype for tensor in method.state_dict().values()} <= {torch.float32, torch.int64}


def test_losses_are_float32_whatever_the_networks_ran_in():
    low = [torch.randn(6, 8, generator=torch.Generator().manual_seed(k)).bfloat16() for k in range(3)]
    wide = [tensor.float() for tensor in low]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(nt_xent(low[0], low[1], 0.07), nt_xent(wide[0], wide[1], temperature=0.07))
        assert torch.equal(info_nce(*low, 0.2), info_nce(*wide, temperature=0.2))
        assert torch.equal(byol_loss(low[0], low[1]), byol_loss(wide[0], wide[1]))
    assert nt_xent(wide[0], wide[1], 0.07).dtype == torch.float32


def test_fp16_on_a_cpu_is_refused_in_words():
    with pytest.raises(FedsslError, match=r"local_training\.precision: 'fp16' is for GPUs"):
        train_locally(make_method(), make_images(16).pixels, Recipe(), LocalTraining(precision="fp16"), 0.01, seed=0)
    with pytest.raises(FedsslError, match=r"local_training\.precision"):
        build(load_config("smoke", {"device": "cpu", "local_training.precision": "fp16"}))


@pytest.mark.parametrize("name", METHODS)
def test_compiled_training_gives_the_same_losses_round_after_round(name, monkeypatch):
    """The graph is caught but run as it is (backend "eager"): no compiler is needed, and the bits stay."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    plain, compiled = make_method(name), make_method(name)
    for seed in (1, 2):
        settings = LocalTraining(epochs=2, batch_size=8)
        expected = train_locally(plain, make_images(24).pixels, Recipe(), settings, 0.03, seed)
        report = train_locally(compiled, make_images(24).pixels, Recipe(), replace(settings, compile=True), 0.03, seed)
        assert report == expected
    assert Weights.of(compiled).digest() == Weights.of(plain).digest()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_never_asks_its_device_for_a_value(name):
    """On the meta device tensors have no values: code that looked at one, and made a GPU wait, would fail here."""
    method = make_method(name).to("meta")
    recipe = Recipe(blur=0.5, solarise=0.5, upside_down=0.5, quarter_turn=0.5)
    views = make_views(make_images(8).pixels.to("meta"), recipe, torch_stream(0, "augment"), method.view_groups)
    stepper = Stepper(method, LocalTraining(), lr=0.1, device=torch.device("meta"))
    assert stepper.step(views).shape == ()
    assert stepper.last_step(views)[1].shape[0] == 8
