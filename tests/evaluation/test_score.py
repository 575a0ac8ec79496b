import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, multinomial

from fedssl.evaluation.results import Result, headline, merged
from fedssl.evaluation.score import (
    Best,
    Gain,
    Score,
    confusion_matrix,
    mean_and_sd,
    paired_interval,
    unpaired_interval,
    wilson_interval,
)


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


def test_paired_interval_by_hand():
    """Of 98 images 15 are won and 5 lost: mean 10/100, variance (20 + 2)/100 - 0.01 = 0.21, sd of the mean 0.045826."""
    assert paired_interval(15 - 5, 15 + 5, 98, z=1.96) == pytest.approx((0.1 - 0.0898186, 0.1 + 0.0898186), abs=1e-6)


def test_paired_interval_is_that_of_the_differences_with_one_image_more_on_either_side():
    """Also where each difference is a mean over clients, as for those that share nothing."""
    for differences in ([1, -1, 0, 0, 1, 1], [0.5, -0.25, 0, 1, 0.75], [0, 0, 0]):
        longer = np.array([*differences, 1, -1])
        half = 1.96 * longer.std() / math.sqrt(len(longer))
        total, squares = sum(differences), sum(d * d for d in differences)
        low, high = paired_interval(total, squares, len(differences), z=1.96)
        assert (low, high) == pytest.approx((max(longer.mean() - half, -1), min(longer.mean() + half, 1)))
        assert low < sum(differences) / len(differences) < high


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.25, 0.05), (0.02, 0.0), (0.4, 0.3)])
def test_paired_interval_covers_the_truth_in_95_of_100_draws(shares):
    """By brute force: the probability of every (won, lost) among 40 images, summed where the interval has the truth."""
    n, (win, lose) = 40, shares
    draws = multinomial(n, [win, lose, 1 - win - lose])
    covered = 0.0
    for won in range(n + 1):
        for lost in range(n + 1 - won):
            low, high = paired_interval(won - lost, won + lost, n)
            covered += draws.pmf([won, lost, n - won - lost]) * (low <= win - lose <= high)
    assert 0.93 < covered <= 1.0


@pytest.mark.parametrize(("before", "after", "n"), [(40, 55, 100), (0, 3, 20), (390, 400, 400)])
def test_unpaired_interval_against_wilson_intervals_of_scipy(before, after, n):
    first, second = (binomtest(k, n).proportion_ci(method="wilson") for k in (before, after))
    p, q = before / n, after / n
    low = q - p - math.sqrt((q - second.low) ** 2 + (first.high - p) ** 2)
    high = q - p + math.sqrt((second.high - q) ** 2 + (p - first.low) ** 2)
    assert unpaired_interval(Score(before, n), Score(after, n)) == pytest.approx((low, high))


def test_best_is_the_better_batchnorm_mode_and_a_gain_is_between_two_of_them():
    first = Best.of({"knn": 0.2, "knn_reestimated": 0.4}, "knn")
    last = Best.of({"knn": 0.45, "knn_sd": 0.01, "knn_reestimated": 0.3, "knn_reestimated_sd": 0.5}, "knn")
    assert (first, last) == (Best(0.4, "reestimated"), Best(0.45, "running", 0.01))
    spreads = {"backbone_std": 0.3, "backbone_std_reestimated": 0.3}
    assert Best.of({"knn": 0.4, "knn_reestimated": 0.4, **spreads}, "knn") == Best(0.4), "it has no BatchNorm"
    assert Best.of({"knn": None, "linear": 0.5}, "knn") is None
    gain = Gain.unpaired(first, last, 100)
    assert gain.difference == pytest.approx(0.05)
    assert gain.interval == unpaired_interval(Score(40, 100), Score(45, 100))
    assert Gain.unpaired(first, last, None).interval is None


def result(correct, encoder="global", seed=0, scope="all", n=10, protocol="linear"):
    return Result(
        encoder=encoder,
        data="cifar10",
        protocol=protocol,
        variant="paper",
        batchnorm="running",
        test_images=scope,
        seed=seed,
        score=Score(correct, n),
        settings={"epochs": 2},
    )


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


def test_confusion_counts_true_classes_in_rows_and_named_classes_in_columns():
    labels, named = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 0, 0])
    assert confusion_matrix(labels, named, 4).tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]
