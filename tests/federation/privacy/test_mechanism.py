"""Client-level differential privacy: clipping by hand, the noise by its statistics, epsilon by its formula."""

import math
from dataclasses import replace

import pytest
import torch

from fedssl.core.weights import Weights
from fedssl.federation.client_sampling import sample_clients
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import Replace
from fedssl.federation.privacy.accounting import cautions, epsilon, most_participations, privacy_text
from fedssl.federation.privacy.mechanism import KEY, ClientDP, PrivateAverage, add_noise, gaussian, run_key
from tests.helpers.small import make_client, make_method, of, result, run, values

EXACT = {"noise_multiplier": 0.0, "noise_seed": "run"}


def average(results, previous, asked=None, **settings):
    privacy = ClientDP(**{"clip_norm": 1.0, **EXACT, **settings})
    return PrivateAverage(privacy=privacy, sampled=asked or len(results), key=run_key(0))(results, previous)


def test_an_update_is_shortened_by_hand():
    """Of (0, 0) → (3, 4) with the predictor (0) → (12): length 13; over both, to a length of 6.5 is half."""
    sent, received = GlobalWeights(of(3.0, 4.0), of(12.0)), GlobalWeights(of(0.0, 0.0), of(0.0))
    found = ClientDP(clip_norm=6.5, **EXACT).protect(sent, received, b"")
    assert values(found.encoder) == pytest.approx([1.5, 2.0])
    assert values(found.predictor) == pytest.approx([6.0])
    whole = ClientDP(clip_norm=13.0, **EXACT).protect(sent, received, b"")
    assert values(whole.encoder) == [3.0, 4.0]


def test_buffers_are_sent_back_as_they_came():
    """Statistics and counters are neither clipped nor noised: they do not leave."""
    buffers = {"running_mean": torch.tensor([5.0]), "num_batches_tracked": torch.tensor(7)}
    received = GlobalWeights(Weights({"w": torch.zeros(2)}, buffers), Weights())
    trained = Weights(
        {"w": torch.ones(2)}, {"running_mean": torch.tensor([9.0]), "num_batches_tracked": torch.tensor(8)}
    )
    for placement in ("central", "local"):
        privacy = ClientDP(clip_norm=1.0, noise_multiplier=1.0, placement=placement)
        found = privacy.protect(GlobalWeights(trained, Weights()), received, b"key").encoder.buffers
        assert (found["running_mean"].item(), found["num_batches_tracked"].item()) == (5.0, 7)
        assert found["num_batches_tracked"].dtype == torch.int64


def test_the_server_shortens_again_ignores_n_and_divides_by_those_it_asked():
    """From 10: +0.5 and +30 (made +1), of 4 that were asked: 10 + 1.5 / 4."""
    previous = GlobalWeights(of(10.0), of(0.0))
    results = [result(0, (10.5,), (0.0,), num_examples=1), result(1, (40.0,), (0.0,), num_examples=1000)]
    assert values(average(results, previous, asked=4).encoder) == pytest.approx([10.375])
    assert average(results, previous).encoder.buffers["bn.running_mean"].item() == 1000.0, "as it was before"


def test_without_noise_and_with_a_wide_bound_it_is_the_plain_average_with_equal_weights(tmp_path):
    outcomes, _ = run(tmp_path, "replace", rounds=1)
    previous = make_client(make_method(), Replace()).initial_global_weights()
    equal = [TrainResult(r.client_id, 1, r.weights, num_examples=1) for r in outcomes[0].results]
    plain = WeightedAverage()(equal, previous)
    found = average(outcomes[0].results, previous, clip_norm=1e9)
    for name, tensor in plain.encoder.parameters.items():
        torch.testing.assert_close(found.encoder.parameters[name], tensor, rtol=1e-5, atol=1e-6)


def large(value, count=60_000):
    return GlobalWeights(Weights({"w": torch.full((count,), value)}), Weights({"p": torch.zeros(1001)}))


@pytest.mark.parametrize("placement", ["central", "local"])
def test_the_noise_has_the_stated_scale(placement):
    """Central: z · C on the sum of 5 zero updates, / 5. Local: z · C on each of the 5: their mean has z · C / √5."""
    settings = {"clip_norm": 0.3, "noise_multiplier": 2.0, "placement": placement}
    previous, sent = large(1.0), []
    for k in range(5):
        upload = ClientDP(**settings).protect(large(1.0), previous, run_key(0, k))
        sent.append(TrainResult(k, 1, upload, num_examples=10))
    moved = average(sent, previous, **settings).encoder.parameters["w"] - 1.0
    expected = 0.6 / 5 if placement == "central" else 0.6 / math.sqrt(5)
    assert moved.std().item() == pytest.approx(expected, rel=0.015)  # the error of a deviation is 1 / √(2n) = 0.3 %
    assert abs(moved.mean().item()) < 4 * expected / math.sqrt(len(moved))
    alone = (sent[0].weights.encoder.parameters["w"] - 1.0).std().item()
    assert alone == (pytest.approx(0.6, rel=0.015) if placement == "local" else 0.0)


def test_the_noise_is_normal_and_of_no_simple_pattern():
    found = torch.from_numpy(gaussian(b"key", "name", 200_001))
    assert len(found) == 200_001
    for bound, share in ((0.5, 0.3829), (1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        assert (found.abs() < bound).double().mean().item() == pytest.approx(share, abs=0.004)
    assert found[:-1].dot(found[1:]).item() / len(found) == pytest.approx(0.0, abs=0.01)
    half = len(found) // 2
    assert found[:half].dot(found[half : 2 * half]).item() / half == pytest.approx(0.0, abs=0.015), "sine and cosine"
    assert not torch.equal(found, torch.from_numpy(gaussian(b"yek", "name", 200_001)))
    assert not torch.equal(found, torch.from_numpy(gaussian(b"key", "other", 200_001)))


def test_a_repeated_update_has_the_same_noise_and_another_one_has_other_noise():
    def noise(value, key=b"key"):
        update = {"w": torch.full((70_000,), value), "v": torch.full((3,), value)}
        add_noise(update, 1.0, key)
        return update["w"] - value

    assert torch.equal(noise(1.0), noise(1.0))
    assert (noise(1.0) - noise(2.0)).std().item() == pytest.approx(math.sqrt(2), rel=0.02)
    assert (noise(1.0) - noise(1.0, b"yek")).std().item() == pytest.approx(math.sqrt(2), rel=0.02)
    assert abs(noise(1.0)[:3] - noise(1.0)[65_536:65_539]).min() > 0, "the parts of a tensor differ"


@pytest.mark.parametrize("placement", ["central", "local"])
@pytest.mark.parametrize("noise_seed", ["secret", "run"])
def test_the_same_update_in_another_round_has_other_noise_when_the_key_is_secret(placement, noise_seed):
    """A key that everybody knows hides nothing, whatever the round: those runs keep their bits."""
    privacy = ClientDP(clip_norm=1.0, noise_multiplier=1.0, placement=placement, noise_seed=noise_seed)
    previous, key = GlobalWeights(of(0.0), of(0.0)), b"k" * 32
    found = []
    for round_number in (1, 1, 2):
        if placement == "local":
            sent = privacy.protect(GlobalWeights(of(0.5), of(0.0)), previous, privacy.round_key(key, round_number))
        else:
            one = replace(result(0, (0.5,), (0.0,)), round_number=round_number)
            sent = PrivateAverage(privacy=privacy, sampled=1, key=key)([one], previous)
        found.append(values(sent.encoder))
    assert found[0] == found[1]
    assert (found[1] == found[2]) == (noise_seed == "run")


def closed_form(deviation, delta):
    """Balle & Wang (2018): delta(eps) = Phi(1/2s − eps s) − e^eps Phi(−1/2s − eps s), by bisection."""

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 600.0
    for _ in range(200):
        eps = (low + high) / 2
        spent = phi(0.5 / deviation - eps * deviation) - math.exp(eps) * phi(-0.5 / deviation - eps * deviation)
        low, high = (eps, high) if spent > delta else (low, eps)
    return high


@pytest.mark.parametrize(("multiplier", "releases", "delta"), [(1.0, 1, 1e-5), (1.0, 100, 1e-5), (5.0, 20, 1e-6)])
def test_epsilon_is_the_closed_form_of_the_gaussian(multiplier, releases, delta):
    assert epsilon(multiplier, releases, delta) == pytest.approx(
        closed_form(multiplier / math.sqrt(releases), delta), rel=1e-6
    )


def test_epsilon_of_known_cases():
    """One release at multiplier 1: 4.377; the classical bound √(2 ln(1.25/delta)) / multiplier is never below it."""
    assert epsilon(1.0, 1, 1e-5) == pytest.approx(4.377, abs=1e-3)
    assert epsilon(10.0, 1, 1e-5) < math.sqrt(2 * math.log(1.25e5)) / 10
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(0.0, 1, 1e-5) == math.inf


def test_rounds_in_which_a_client_was_not_asked_do_not_count():
    assert most_participations(5, None, 0, 30) == 30
    asked = [sample_clients(6, 2, 3, r) for r in range(1, 21)]
    assert most_participations(6, 2, 3, 20) == max(sum(k in one for one in asked) for k in range(6)) < 20
    assert most_participations(6, 2, 3, 0) == 0


def test_what_is_said_of_epsilon():
    about = {"epsilon": 91.8, "delta": 1e-5, "rounds": 100, "releases": 100, "clip_norm": 1.0, "noise_multiplier": 1.0}
    about |= {"placement": "central", "noise_seed": "run"}
    assert "after 100 rounds: epsilon 91.8 at delta 1e-05" in privacy_text(about)
    assert len(cautions(about)) == 3
    assert cautions(about | {"epsilon": 3.0, "placement": "local", "noise_seed": "secret"}) == []
    assert "infinite" in privacy_text(about | {"epsilon": None})
    assert "promises next to nothing" in cautions(about | {"epsilon": None})[0]


def test_a_client_with_its_own_noise_sends_no_number_about_its_images(tmp_path):
    privacy = ClientDP(clip_norm=1.0, noise_multiplier=1.0, placement="local")
    client = make_client(make_method(), Replace(), batchnorm="local-statistics", privacy=privacy)
    aggregate = PrivateAverage(privacy=privacy, sampled=4)
    outcomes, store = run(tmp_path, Replace(), client=client, aggregate=aggregate)
    for outcome in outcomes:
        for one in outcome.results:
            assert set(one.scalars) == {"seconds", "ema"}
            assert one.num_examples == 1
    keys = [store.load(k, 1).memory[KEY] for k in range(4)]
    assert all(torch.equal(store.load(k, 2).memory[KEY], keys[k]) for k in range(4)), "kept from round to round"
    assert len({bytes(key.numpy()) for key in keys}) == 4
    assert all(len(key) == 32 for key in keys)


@pytest.mark.parametrize(
    ("placement", "at_clients", "needs_sum", "hides"),
    [
        ("central", False, False, {"any", "central"}),
        ("distributed", True, True, {"any", "central", "distributed"}),
        ("local", True, False, {"any", "central", "distributed", "local"}),
    ],
)
def test_what_a_placement_means(placement, at_clients, needs_sum, hides):
    privacy = ClientDP(clip_norm=1.0, noise_multiplier=1.0, placement=placement)
    assert (privacy.at_clients, privacy.needs_sum) == (at_clients, needs_sum)
    assert {one for one in ("any", "central", "distributed", "local") if privacy.hides(one)} == hides
