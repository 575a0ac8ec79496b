import pytest
import torch

from fedssl.evaluation.results import Result, headline, merged
from fedssl.evaluation.score import Score, mean_and_sd, wilson_interval


def test_wilson_interval_by_hand():
    """8 of 10 at z = 1.96: (0.8 + 0.19208 ± 1.96 sqrt(0.016 + 0.0096040)) / 1.38416."""
    assert wilson_interval(8, 10, z=1.96) == pytest.approx((0.490162, 0.943318), abs=1e-5)
    assert Score(8, 10).interval == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_wilson_interval_stays_a_probability():
    assert wilson_interval(0, 20)[0] == pytest.approx(0.0, abs=1e-12)
    assert 0 < wilson_interval(0, 20)[1] < 0.2
    assert wilson_interval(20, 20)[1] == pytest.approx(1.0, abs=1e-12)
    assert wilson_interval(0, 7)[0] >= 0
    assert wilson_interval(7, 7)[1] <= 1


def test_accuracy_is_over_images_not_the_mean_of_batches():
    """Three images, batches of two and one: 2/3, where the mean of batch accuracies would be (1/2 + 1)/2."""
    score = Score.of(torch.tensor([1, 0, 2]), torch.tensor([1, 1, 2]))
    assert (score.correct, score.n) == (2, 3)
    assert score.accuracy == 2 / 3


def test_mean_and_sd():
    assert mean_and_sd([0.5]) == (0.5, None)
    assert mean_and_sd([0.4, 0.5, 0.6]) == pytest.approx((0.5, 0.1))


def result(correct, encoder="global", seed=0, scope="all", n=10, protocol="linear"):
    return Result(encoder, "cifar10", protocol, "paper", "running", scope, seed, Score(correct, n), {"epochs": 2})


def test_headline_of_one_result_has_an_interval_over_images():
    (entry,) = headline([result(8)])
    assert entry["accuracy"] == 0.8
    assert entry["interval_95"] == list(wilson_interval(8, 10))
    assert (entry["sd"], entry["seeds"], entry["clients"], entry["n"]) == (None, 1, None, 10)
    assert entry["settings"] == {"epochs": 2}


def test_headline_over_seeds_has_a_spread():
    (entry,) = headline([result(7, seed=0), result(8, seed=1), result(9, seed=2)])
    assert (entry["accuracy"], entry["sd"]) == pytest.approx((0.8, 0.1))
    assert (entry["seeds"], entry["interval_95"]) == (3, None)


def test_headline_over_clients_is_the_mean_of_their_means():
    """Client 0: 6 and 8, mean 7; client 1: 9 and 9; the spread is between 0.7 and 0.9, not over the four."""
    results = [result(c, f"client {k}", seed) for k, seed, c in ((0, 0, 6), (0, 1, 8), (1, 0, 9), (1, 1, 9))]
    (entry,) = headline(results)
    assert entry["encoder"] == "clients"
    assert (entry["accuracy"], entry["sd"]) == pytest.approx((0.8, 0.02**0.5))
    assert (entry["clients"], entry["seeds"]) == (2, 2)


def test_own_classes_are_an_entry_of_their_own_also_for_the_global_encoder():
    scopes = [result(4, scope="classes of client 0", n=4), result(3, scope="classes of client 1", n=6)]
    own = [result(2, "client 0", scope="classes of client 0", n=4)]
    entries = {(e["encoder"], e["test_images"]): e for e in headline([result(7), *scopes, *own])}
    assert entries["global", "all"]["accuracy"] == 0.7
    assert entries["global", "own classes"]["accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert entries["global", "own classes"]["n"] == 10
    assert entries["clients", "own classes"]["accuracy"] == 0.5


def test_a_newer_entry_replaces_the_older_of_its_kind_only():
    old = headline([result(3), result(4, protocol="knn")])
    new = headline([result(9)])
    together = merged(old, new)
    assert [(e["protocol"], e["accuracy"]) for e in together] == [("knn", 0.4), ("linear", 0.9)]
