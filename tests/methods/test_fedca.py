"""FedCA: its loss by hand and in numpy, what it shares, and what the server makes of that."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedssl.core.weights import Weights
from fedssl.methods.losses import alignment, nt_xent
from fedssl.networks.inputs import as_input
from tests.helpers.small import make_images, make_method


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=1)


def views(count=6):
    return torch.rand(2, count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_one_image_and_one_shared_projection_by_hand():
    """Both views point along x, the shared one along y: −log(e / (e + 1)) for either view."""
    along_x = torch.tensor([[2.0, 0.0]])
    loss = nt_xent(along_x, along_x, 1.0, torch.tensor([[0.0, 1.0]]))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert nt_xent(along_x, along_x, 1.0, torch.empty(0, 2)).item() == pytest.approx(0.0)


def test_alignment_by_hand():
    """(3, 4) has the direction (0.6, 0.8): 0.4² + 0.8² from (1, 0); (0, −2) is 2² from (0, 1)."""
    found = alignment(torch.tensor([[3.0, 4.0], [0.0, -2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert found.item() == pytest.approx((0.8 + 4.0) / 2)


def in_numpy(z1, z2, dictionary, temperature):
    """Written from the formula, one anchor after another."""
    z = [row / np.sqrt((row**2).sum()) for row in np.concatenate([z1, z2])]
    count, total = len(z1), 0.0
    for i, anchor in enumerate(z):
        positive = np.exp(anchor @ z[(i + count) % (2 * count)] / temperature)
        others = sum(np.exp(anchor @ other / temperature) for j, other in enumerate(z) if j != i)
        shared = sum(np.exp(anchor @ row / temperature) for row in dictionary)
        total -= np.log(positive / (others + shared))
    return total / (2 * count)


def test_the_whole_loss_against_numpy():
    method, (a, b) = make_method("fedca", align_weight=0.3).eval(), views()
    method.public = make_images(5).pixels
    method.receive({"dictionary": unit(7, 8), "aligned": unit(5, 8, seed=1)})
    with torch.no_grad():
        torch.manual_seed(4)
        loss = method.loss([a, b]).item()
        torch.manual_seed(4)
        drawn = torch.randint(5, (6,))
        z1, z2 = method.online_encoder(a).double().numpy(), method.online_encoder(b).double().numpy()
        p = method.online_encoder(as_input(method.public[drawn], torch.device("cpu"))).double().numpy()
    base = unit(5, 8, seed=1)[drawn].double().numpy()
    apart = np.mean([((row / np.sqrt((row**2).sum()) - other) ** 2).sum() for row, other in zip(p, base, strict=True)])
    assert loss == pytest.approx(in_numpy(z1, z2, unit(7, 8).double().numpy(), 0.1) + 0.3 * apart, rel=1e-5)


def test_without_dictionary_and_public_images_it_is_simclr():
    method, (a, b) = make_method("fedca").eval(), views()
    assert method.loss([a, b]).item() == pytest.approx(
        make_method("simclr", temperature=0.1).eval().loss([a, b]).item()
    )


def test_the_base_decides_and_gradients_reach_the_encoder_only_from_the_online_side():
    method, (a, b) = make_method("fedca", align_weight=1.0), views()
    method.public = make_images(4).pixels
    method.receive({"aligned": unit(4, 8)})
    method.loss([a, b]).backward()
    assert all(parameter.grad is None for parameter in method.target_encoder.parameters())
    assert method.aligned.grad is None
    assert not method.dictionary.requires_grad


def test_the_last_projections_of_the_momentum_copy_are_shared():
    method, (a, b) = make_method("fedca", shared_projections=8), views()
    with torch.no_grad():
        for parameter in method.target_encoder.parameters():
            parameter.mul_(0.5)
    method.start_round()
    copies = []
    for view in (a, b):
        method.loss([view, a])
        with torch.no_grad():
            copies.append(F.normalize(method.target_encoder(view), dim=1))  # training mode: of this batch's statistics
    sent = method.payload()["projections"]
    torch.testing.assert_close(sent, torch.cat(copies)[-8:])
    assert method.payload_problem({"projections": sent}) == ""
    method.start_round()
    assert len(method.payload()["projections"]) == 0, "nothing of an earlier round is sent again"


def test_the_dictionary_takes_as_many_of_every_client_and_no_more_than_its_size():
    method = make_method("fedca", dictionary_size=5)
    a, b = unit(4, 8), unit(1, 8, seed=1)
    pooled = method.pool([{"projections": a}, {"projections": b}])["dictionary"]
    torch.testing.assert_close(pooled, torch.cat([a[-2:], b]))
    many = method.pool([{"projections": unit(1, 8, seed=seed)} for seed in range(9)])["dictionary"]
    assert many.shape == (5, 8)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, "got nothing, expected projections"),
        ({"projections": unit(2, 8), "images": unit(1, 8)}, "got images: torch.float32 of shape (1, 8), "),
        ({"projections": unit(2, 7)}, "(2, 7), expected projections: torch.float32 of shape (…, 8)"),
        ({"projections": unit(2, 8).double()}, "got projections: torch.float64 of shape (2, 8)"),
        ({"projections": torch.ones(8)}, "got projections: torch.float32 of shape (8,)"),
        ({"projections": unit(5, 8)}, "projections: 5, not from 1 to 4"),
        ({"projections": unit(0, 8)}, "projections: 0, not from 1 to 4"),
        ({"projections": torch.cat([unit(1, 8), 2 * unit(1, 8)])}, "projections: row 1 is not normalised"),
        ({"projections": torch.full((1, 8), math.nan)}, "projections: row 0 is not normalised"),
    ],
)
def test_what_a_client_may_not_share(payload, problem):
    assert problem in make_method("fedca", shared_projections=4).payload_problem(payload)


def test_a_method_that_shares_nothing_takes_no_payload():
    assert make_method("byol").payload_problem({}) == ""
    assert "images: this method shares nothing but weights" in make_method("byol").payload_problem(
        {"images": unit(1, 8)}
    )


def test_the_base_gives_one_direction_for_every_public_image():
    method = make_method("fedca")
    method.public = make_images(300).pixels
    before = Weights.of(method.online_encoder).digest()
    aligned = method.first_payload()["aligned"]
    assert aligned.shape == (300, 8)
    torch.testing.assert_close(aligned.norm(dim=1), torch.ones(300))
    method.eval()
    with torch.no_grad():
        one = F.normalize(method.online_encoder(method.public[299:].float() / 255), dim=1)
    torch.testing.assert_close(aligned[299:], one, rtol=1e-4, atol=1e-5)
    assert Weights.of(method.online_encoder).digest() == before, "no statistics are taken of public images"
