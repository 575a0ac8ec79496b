import math
import re

import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.settings import needs_of
from fedssl.core.view_groups import ViewGroup
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.federation.local_training import LocalTraining, train_locally
from fedssl.federation.messages import TrainTask
from fedssl.federation.model_communication import Replace
from fedssl.methods import METHODS
from fedssl.methods.collapse import feature_std
from fedssl.methods.losses import barlow_loss, byol_loss, dino_loss, info_nce, nt_xent, simsiam_loss, vicreg_loss
from tests.helpers.small import HEADS, make_client, make_images, make_method


def views(seed=0, count=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 16, 16, generator=generator), torch.rand(count, 3, 16, 16, generator=generator)


def views_for(method, seed=0, count=6):
    """The views that this method asks for."""
    pixels, stream = make_images(count).pixels, torch.Generator().manual_seed(seed)
    return make_views(pixels, Recipe(), stream, method.view_groups)


# --- every method of the registry -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_loss_is_finite_and_trains_every_trained_parameter(name):
    method = make_method(name)
    loss = method.loss(views_for(method))
    loss.backward()
    assert torch.isfinite(loss)
    for parameter in method.trained_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", METHODS)
def test_its_docstring_says_what_it_needs_and_what_leaves_the_client(name):
    assert re.fullmatch(r"Needs: .+\. Leaves the client: .*encoder.*\.", needs_of(METHODS[name]))


@pytest.mark.parametrize("name", METHODS)
def test_target_is_a_copy_that_shares_no_memory(name):
    method = make_method(name)
    if method.target_encoder is None:
        assert name in ("simclr", "simsiam", "vicreg", "barlow", "align-uniform", "mae", "ssd", "fedx", "fedsc")
        return
    assert Weights.of(method.target_encoder).digest() == Weights.of(method.online_encoder).digest()
    with torch.no_grad():
        next(method.online_encoder.parameters()).add_(1)
    assert Weights.of(method.target_encoder).digest() != Weights.of(method.online_encoder).digest()


@pytest.mark.parametrize("name", METHODS)
def test_each_view_passes_in_its_own_forward(name):
    """BatchNorm's counter goes up by one a view; a transformer has none, its calls are counted."""
    method = make_method(name)
    given, calls = views_for(method), []
    method.online_encoder.register_forward_hook(lambda *_: calls.append(1))
    method.loss(given)
    passes = len(calls) if name == "mae" else method.online_encoder.backbone.bn1.num_batches_tracked.item()
    assert passes == len(given) == sum(group.count for group in method.view_groups)


@pytest.mark.parametrize("name", METHODS)
def test_training_lowers_the_loss(name):
    method = make_method(name, width=8)
    pixels = make_images(64).pixels
    training = LocalTraining(epochs=1, batch_size=32, lr=0.03)
    losses = [train_locally(method, pixels, Recipe(jitter=0.0), training, 0.03, seed=seed).loss for seed in range(18)]
    # MoCo's first keys, random ones, are too easy to tell apart; DINO's teacher names one prototype till it is centred.
    assert losses[-1] < losses[12 if name == "dino" else 3]


# --- each loss is composed as its paper says -------------------------------------------------------------------------


def test_simclr_loss():
    method, (a, b) = make_method("simclr", temperature=0.3).eval(), views()
    expected = nt_xent(method.online_encoder(a), method.online_encoder(b), 0.3)
    assert method.loss([a, b]).item() == pytest.approx(expected.item())


def one_batch_by_hand(encoder, a, b, temperature):
    """NT-Xent image by image: 2B projections of one forward, row i's partner B rows away."""
    z = encoder(torch.cat([a, b]))
    rows = [row / row.norm() for row in z]
    total = 0.0
    for i, row in enumerate(rows):
        scores = [row @ other / temperature for j, other in enumerate(rows) if j != i]
        partner = row @ rows[(i + len(a)) % len(rows)] / temperature
        total = total + torch.stack(scores).exp().sum().log() - partner
    return total / len(rows)


def test_simclr_with_both_views_in_one_batch():
    """BatchNorm sees the 2B images together: the loss and every gradient are those of one forward."""
    joint, by_hand = (make_method("simclr", temperature=0.3, joint_batch=True).double() for _ in range(2))
    apart = make_method("simclr", temperature=0.3).double()
    a, b = (view.double() for view in views())
    b = 0.5 * b  # so that the views' own statistics differ from those of both together
    expected = one_batch_by_hand(by_hand.online_encoder, a, b, 0.3)
    losses = [joint.loss([a, b]), expected, apart.loss([a, b])]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(expected.item(), rel=1e-6)  # losses are computed in float32
    for own, hand in zip(joint.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own.grad, hand.grad, rtol=1e-4, atol=1e-6)
    assert joint.online_encoder.backbone.bn1.num_batches_tracked.item() == 1
    assert apart.online_encoder.backbone.bn1.num_batches_tracked.item() == 2
    gradients = [torch.cat([p.grad.flatten() for p in method.parameters()]) for method in (joint, apart)]
    assert torch.cosine_similarity(*gradients, dim=0) < 0.99


def test_simsiam_loss_is_half_of_each_direction_and_stops_gradients():
    method, (a, b) = make_method("simsiam").eval(), views()
    z1, z2 = method.online_encoder(a), method.online_encoder(b)
    expected = 0.5 * simsiam_loss(method.predictor(z1), z2) + 0.5 * simsiam_loss(method.predictor(z2), z1)
    assert method.loss([a, b]).item() == pytest.approx(expected.item())

    def gradient(stop_gradient):
        method.stop_gradient = stop_gradient
        method.zero_grad()
        method.loss([a, b]).backward()
        return method.online_encoder.projector[3].weight.grad.clone()

    z1, z2 = method.online_encoder(a), method.online_encoder(b)
    method.zero_grad()
    by_hand = 0.5 * simsiam_loss(method.predictor(z1), z2.detach()) + 0.5 * simsiam_loss(
        method.predictor(z2), z1.detach()
    )
    by_hand.backward()
    torch.testing.assert_close(method.online_encoder.projector[3].weight.grad.clone(), gradient(True))
    assert not torch.allclose(gradient(True), gradient(False))


def test_byol_loss_is_the_sum_of_both_directions_not_their_mean():
    method, (a, b) = make_method("byol").eval(), views()
    with torch.no_grad():
        for parameter in method.target_encoder.parameters():
            parameter.mul_(0.9)
    p1, p2 = method.predictor(method.online_encoder(a)), method.predictor(method.online_encoder(b))
    z1, z2 = method.target_encoder(a), method.target_encoder(b)
    assert method.loss([a, b]).item() == pytest.approx((byol_loss(p1, z2) + byol_loss(p2, z1)).item(), rel=1e-5)


def test_byol_loss_of_opposite_vectors_is_eight():
    """(2 + 2) a direction, two directions."""
    method, (a, _) = make_method("byol", predictor=False).eval(), views()
    with torch.no_grad():
        method.target_encoder.projector[3].weight.neg_()
        method.target_encoder.projector[3].bias.neg_()
    assert method.loss([a, a]).item() == pytest.approx(8.0, rel=1e-5)


def test_byol_target_moves_by_ema_of_the_parameters_only():
    method = make_method("byol", momentum=0.9)
    with torch.no_grad():
        method.online_encoder.backbone.conv1.weight.fill_(2.0)
        method.target_encoder.backbone.conv1.weight.fill_(1.0)
        method.online_encoder.backbone.bn1.running_mean.fill_(5.0)
        method.target_encoder.backbone.bn1.running_mean.fill_(3.0)
    method.after_step()
    moved = method.target_encoder.backbone.conv1.weight
    torch.testing.assert_close(moved, torch.full_like(moved, 0.9 * 1.0 + 0.1 * 2.0))
    assert (method.target_encoder.backbone.bn1.running_mean == 3.0).all()


def test_byol_without_ema_leaves_the_target():
    method = make_method("byol", ema=False)
    before = Weights.of(method.target_encoder).digest()
    with torch.no_grad():
        next(method.online_encoder.parameters()).add_(1)
    method.after_step()
    assert Weights.of(method.target_encoder).digest() == before


def test_byol_switches():
    assert isinstance(make_method("byol", predictor=False).predictor, nn.Identity)
    with_stop = make_method("byol")
    assert not any(parameter.requires_grad for parameter in with_stop.target_encoder.parameters())
    paper = make_method("byol", stop_gradient=False)
    paper.loss(views()).backward()
    assert all(parameter.grad is not None for parameter in paper.target_encoder.parameters())
    trained = set(map(id, paper.trained_parameters()))
    assert all(id(parameter) in trained for parameter in paper.target_encoder.parameters())


def test_authors_stop_gradient_off_trains_the_same_weights_as_on():
    """Their optimizer leaves the target out, so the gradients that reach it have no effect."""
    trained = []
    for settings in ({}, {"stop_gradient": False, "without_stop_gradient": "authors"}):
        method = make_method("byol", **settings)
        train_locally(method, make_images(32).pixels, Recipe(), LocalTraining(batch_size=16, epochs=2), 0.05, seed=1)
        trained.append(Weights.of(method).digest())
    assert trained[0] == trained[1]


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_of_more_views_each_predicts_the_mean_of_the_others(name):
    """Three views, written out; the scale is that of two, so that a learning rate keeps its meaning."""
    method = make_method(name, views=3).eval()
    assert method.view_groups == (ViewGroup(3),)
    given = [*views(), views(1)[0]]
    z = [(method.target_encoder or method.online_encoder)(view) for view in given]
    p = [method.predictor(method.online_encoder(view)) for view in given]
    means = [(z[1] + z[2]) / 2, (z[0] + z[2]) / 2, (z[0] + z[1]) / 2]
    cosines = sum(nn.functional.cosine_similarity(a, b).mean().item() for a, b in zip(p, means, strict=True)) / 3
    expected = 2 * (2 - 2 * cosines) if name == "byol" else -cosines
    assert method.loss(given).item() == pytest.approx(expected, rel=1e-5)


# --- MoCo ------------------------------------------------------------------------------------------------------------


def test_moco_loss_and_queue_by_hand():
    method, (a, b) = make_method("mocov2", temperature=0.2).eval(), views()
    queue = method.queue.clone()
    q1, q2 = (nn.functional.normalize(method.online_encoder(x), dim=1) for x in (a, b))
    k1, k2 = (nn.functional.normalize(method.target_encoder(x), dim=1) for x in (a, b))
    expected = info_nce(q1, k2, queue, 0.2) + info_nce(q2, k1, queue, 0.2)
    assert method.loss([a, b]).item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(method.queue[:12], torch.cat([k1, k2]))
    assert torch.equal(method.queue[12:], queue[12:])
    assert method.queue_end.item() == 12


def test_moco_queue_goes_round():
    method = make_method("mocov2", queue_size=16)
    for seed in range(2):
        method.loss(views(seed))
    assert method.queue_end.item() == 24 % 16
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(16))


def test_moco_queue_smaller_than_a_batch_keeps_the_newest():
    method, (a, b) = make_method("mocov2", queue_size=4).eval(), views()
    k2 = nn.functional.normalize(method.target_encoder(b), dim=1)
    method.loss([a, b])
    torch.testing.assert_close(method.queue, k2[-4:])


def test_moco_v1_and_v2_heads_and_temperatures():
    v1 = METHODS["mocov1"](nn.Flatten(), 10, HEADS)
    v2 = METHODS["mocov2"](nn.Flatten(), 10, HEADS)
    paper = METHODS["mocov2"](nn.Flatten(), 10, HEADS, head="paper")
    assert isinstance(v1.online_encoder.projector, nn.Linear)
    assert (v1.online_encoder.projector.out_features, v1.temperature, len(v1.queue)) == (128, 0.07, 4096)
    assert (v2.online_encoder.projector[0].out_features, v2.online_encoder.projector[3].out_features) == (10, 128)
    assert v2.temperature == 0.2
    assert (paper.online_encoder.projector[0].out_features, paper.queue.shape[1]) == (HEADS.hidden, HEADS.out)
    assert (METHODS["mocov1"].recipe, METHODS["mocov1"].schedule) == ("weak-jitter", "constant")


@pytest.mark.parametrize("kept", ["keep", "reset"])
def test_moco_between_rounds(kept):
    method = make_method("mocov2", key_encoder=kept, queue_between_rounds=kept)
    method.loss(views())
    with torch.no_grad():
        next(method.online_encoder.parameters()).add_(1)
    target, queue = Weights.of(method.target_encoder).digest(), method.queue.clone()
    method.start_round()
    assert (Weights.of(method.target_encoder).digest() == target) == (kept == "keep")
    assert torch.equal(method.queue, queue) == (kept == "keep")
    if kept == "reset":
        assert Weights.of(method.target_encoder).digest() == Weights.of(method.online_encoder).digest()
        assert method.queue_end.item() == 0


def test_memory_is_what_a_method_registers_and_nothing_else():
    assert set(make_method("mocov2").memory()) == {"queue", "queue_end"}
    assert set(make_method("dino").memory()) == {"centre", "epochs_begun"}
    assert make_method("byol").memory() == {}


# --- VICReg, Barlow Twins, alignment and uniformity ------------------------------------------------------------------


def test_vicreg_barlow_and_align_uniform_losses_of_both_projections():
    a, b = views()
    for name, loss, settings in (
        ("vicreg", vicreg_loss, {"invariance": 5.0, "variance": 3.0, "covariance": 2.0}),
        ("barlow", barlow_loss, {"redundancy": 0.3}),
    ):
        method = make_method(name, **settings)  # training mode: BatchNorm spreads the projections
        assert [type(part) for part in method.online_encoder.projector].count(nn.Linear) == 3
        expected = loss(method.online_encoder(a), method.online_encoder(b), *settings.values())
        assert method.loss([a, b]).item() == pytest.approx(expected.item(), rel=1e-5)
    method = make_method("align-uniform", uniform_weight=0.5, sharpness=3.0)
    z1, z2 = (nn.functional.normalize(method.online_encoder(view), dim=1) for view in (a, b))
    spread = [torch.pdist(z).square().mul(-3).exp().mean().log() for z in (z1, z2)]
    expected = (z1 - z2).square().sum(dim=1).mean() + 0.5 * (spread[0] + spread[1]) / 2
    assert method.loss([a, b]).item() == pytest.approx(expected.item(), rel=1e-4)


# --- DINO ------------------------------------------------------------------------------------------------------------


def test_dino_asks_for_two_global_and_smaller_local_crops():
    assert make_method("dino", local_views=3).view_groups == (ViewGroup(2), ViewGroup(3, 0.5, (0.05, 0.4)))
    assert make_method("dino", local_views=0).view_groups == (ViewGroup(2),)
    sizes = [tuple(view.shape[2:]) for view in views_for(make_method("dino", local_views=3, local_part=0.25))]
    assert sizes == [(16, 16)] * 2 + [(4, 4)] * 3


def test_dino_loss_and_centre_by_hand():
    """The teacher sees the global views only; its mean moves the centre, which the loss sees as it was before."""
    method = make_method("dino", centre_momentum=0.75).eval()
    with torch.no_grad():
        for parameter in method.target_encoder.parameters():
            parameter.mul_(0.9)
        method.centre.fill_(0.1)
    given = views_for(method)
    student = torch.stack([method.online_encoder(view) for view in given])
    teacher = torch.stack([method.target_encoder(view) for view in given[:2]])
    expected = dino_loss(student, teacher, torch.full((12,), 0.1), 0.1, 0.04)
    assert method.loss(given).item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(method.centre, 0.75 * 0.1 + 0.25 * teacher.mean(dim=(0, 1)))


def test_dino_outputs_are_cosines_to_prototypes():
    method = make_method("dino").eval()
    head, features = (
        method.online_encoder.projector,
        torch.rand(3, method.online_encoder.projector.layers[0].in_features),
    )
    reduced = head.layers(features)
    for row, output in zip(reduced, head(features), strict=True):
        for prototype, value in zip(head.prototypes.weight, output, strict=True):
            assert value.item() == pytest.approx(torch.cosine_similarity(row, prototype, dim=0).item(), abs=1e-5)


def test_dino_prototypes_learn_from_a_clients_second_epoch_on():
    """Their direction stays in the first epoch, also when a round has more of them; the client remembers it."""
    method, pixels = make_method("dino"), make_images(16).pixels

    def direction():
        return nn.functional.normalize(method.online_encoder.projector.prototypes.weight.detach(), dim=1)

    def train(epochs):
        before, hidden = direction(), method.online_encoder.projector.layers[0].weight.detach().clone()
        train_locally(method, pixels, Recipe(), LocalTraining(epochs=epochs, batch_size=8), 0.1, seed=0)
        assert not torch.equal(hidden, method.online_encoder.projector.layers[0].weight)
        return (direction() - before).abs().max().item()

    start = {name: tensor.clone() for name, tensor in method.memory().items()}
    assert train(1) < 1e-6
    assert train(1) > 1e-5
    for name, tensor in method.memory().items():
        tensor.copy_(start[name])  # another client, at its beginning
    assert train(2) > 1e-5


# --- masked autoencoder ----------------------------------------------------------------------------------------------


def test_mae_predicts_the_patches_that_it_does_not_see():
    """Pixels of a masked patch change the loss by what is to be painted only, never by what the encoder sees."""
    method = make_method("mae").eval()
    image = views_for(method)[0]
    seen = []
    method.online_encoder.register_forward_hook(lambda _, given, tokens: seen.append((given[1], tokens)))
    for changed in (image, image.flip(0)):
        torch.manual_seed(1)  # the same patches of both
        method.loss([changed])
    (kept, tokens), (same, _) = seen
    assert torch.equal(kept, same)
    assert tokens.shape == (6, 4, 16)  # a quarter of 4 x 4 patches
    blank = image.clone()
    hidden = [sorted(set(range(16)) - set(row.tolist())) for row in kept]
    for number, places in enumerate(hidden):
        for place in places:
            row, column = 4 * (place // 4), 4 * (place % 4)
            blank[number, :, row : row + 4, column : column + 4] = 0
    torch.testing.assert_close(method.online_encoder(blank, kept), tokens)


def test_mae_loss_by_hand():
    """One image, patch by patch: the decoder gets tokens and places, its answers are compared with masked pixels."""
    method = make_method("mae", masked=0.5).eval()
    image = views_for(method, count=1)[0]
    torch.manual_seed(2)
    order = torch.rand(1, 16).argsort(dim=1)
    torch.manual_seed(2)
    loss = method.loss([image]).item()
    painted = method.predictor(method.online_encoder(image, order[:, :8]), order, (4, 4))[0]
    errors = []
    for place, answer in zip(order[0, 8:].tolist(), painted, strict=True):
        row, column = 4 * (place // 4), 4 * (place % 4)
        patch = image[0, :, row : row + 4, column : column + 4].flatten()
        errors.append((answer - (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()).square().mean().item())
    assert loss == pytest.approx(sum(errors) / 8, rel=1e-5)


def test_mae_evaluates_the_mean_of_all_tokens():
    method = make_method("mae").eval()
    backbone, images = method.online_encoder.backbone, views_for(method)[0]
    expected = backbone.tokens(backbone.patches(images)).mean(dim=1)
    torch.testing.assert_close(method.online_encoder(images), expected)
    torch.testing.assert_close(backbone(images), expected)


def test_mae_decoder_travels_as_predictor_or_stays_as_memory():
    travels, stays = make_method("mae"), make_method("mae", decoder="stays")
    assert travels.memory() == {}
    assert list(stays.predictor.state_dict()) == []
    assert {name.removeprefix("own_decoder.") for name in stays.memory()} == set(travels.predictor.state_dict())
    given = views_for(travels)
    torch.manual_seed(0)
    loss = travels.loss(given)
    torch.manual_seed(0)
    assert torch.equal(stays.loss(given), loss)
    assert sum(map(torch.numel, stays.trained_parameters())) == sum(map(torch.numel, travels.trained_parameters()))


def test_mae_refuses_networks_without_patch_tokens_and_images_of_one_patch():
    with pytest.raises(FedsslError, match=r'mae masks patches .*network\.name = "vit-tiny"'):
        METHODS["mae"](nn.Flatten(), 10, HEADS)
    with pytest.raises(FedsslError, match=r"network\.patch_size: 4 leaves one patch"):
        make_method("mae").loss([torch.rand(2, 3, 4, 4)])
    with pytest.raises(FedsslError, match=r"method\.decoder_width: 34: give a multiple of 32"):
        make_method("mae", decoder_width=34)


# --- the collapse measure --------------------------------------------------------------------------------------------


def test_feature_std_is_zero_when_all_images_look_alike_and_near_one_when_spread():
    assert feature_std(torch.ones(50, 8) * torch.arange(1, 51)[:, None]) == pytest.approx(0.0, abs=1e-6)
    generator = torch.Generator().manual_seed(0)
    assert feature_std(torch.randn(5000, 64, generator=generator)) == pytest.approx(1.0, abs=0.02)
    assert feature_std(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(0.5 * 2**0.5)  # std (1, 0)


def test_byols_momentum_rises_to_one_over_the_rounds_if_asked():
    """m_r = 1 − 0.04 · (1 + cos(pi r / R)) / 2: 0.96 at first, 0.98 half-way; without the schedule it stays."""
    method = make_method("byol", momentum=0.96, momentum_schedule="cosine")
    client = make_client(method, Replace(), rounds=4)
    found = []
    for number in (1, 2, 3, 4):
        client._start(None, TrainTask(0, number, accepted_round=None, global_weights=client.initial_global_weights()))
        found.append(method.momentum_now)
    assert found == pytest.approx([1 - 0.02 * (1 + math.cos(math.pi * r / 4)) for r in range(4)])
    assert (found[0], found[2]) == pytest.approx((0.96, 0.98))
    client = make_client(constant := make_method("byol", momentum=0.96), Replace(), rounds=4)
    client._start(None, TrainTask(0, 3, accepted_round=None, global_weights=client.initial_global_weights()))
    assert constant.momentum_now == 0.96
