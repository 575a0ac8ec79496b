import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedssl.core.errors import FedsslError
from fedssl.data.partition import PARTITIONS, Owners, Partition, classes, deal_out, dirichlet, iid, natural

CIFAR = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def assert_disjoint(partition: Partition, num_images: int) -> None:
    everyone = np.concatenate(partition.clients)
    assert len(np.unique(everyone)) == len(everyone)
    assert everyone.min() >= 0
    assert everyone.max() < num_images
    assert len(everyone) + partition.unused == num_images
    for indices in partition.clients:
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()


@pytest.mark.parametrize(
    ("num_clients", "per_client", "part", "size", "unused"),
    [
        (5, 2, 5000, 10_000, 0),  # 10 shares over 10 classes: each class whole
        (5, 4, 2500, 10_000, 0),  # 20 shares: each class in 2
        (5, 6, 1666, 9_996, 10 * 2),  # 30 shares: in 3, two images of each class left over
        (5, 10, 1000, 10_000, 0),
        (20, 2, 1250, 2_500, 0),
        (20, 3, 833, 2_499, 10 * 2),  # 60 shares: in 6, two images of each class left over
        (3, 4, 2500, 10_000, 8 * 2500),  # 12 shares: ceil(1.2) = 2 parts, 20 cut and 8 of them dropped
        (80, 2, 312, 624, 10 * 8),
    ],
)
def test_classes_by_hand(num_clients, per_client, part, size, unused):
    partition = classes(CIFAR, 50_000, 0, num_clients=num_clients, classes_per_client=per_client)
    assert partition.sizes() == [size] * num_clients
    assert partition.unused == unused
    assert_disjoint(partition, 50_000)
    counts = partition.class_counts(CIFAR, 10)
    assert ((counts == part) | (counts == 0)).all()
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert (counts.sum(axis=0) > 0).all()  # no class is lost


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "per_client", "unused"),
    [(10, 5, 6, 20), (100, 5, 60, 200), (10, 80, 2, 80), (100, 80, 20, 400)],
)
def test_what_is_left_over_at_the_papers_values_can_be_dealt_out(num_classes, num_clients, per_client, unused):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), 50_000 // num_classes))
    settings = {"num_clients": num_clients, "classes_per_client": per_client}
    assert classes(labels, 50_000, 0, **settings).unused == unused
    dealt = classes(labels, 50_000, 0, leftover="dealt", **settings)
    assert dealt.unused == 0
    assert_disjoint(dealt, 50_000)
    counts = dealt.class_counts(labels, num_classes)
    part = 50_000 // num_classes // (num_clients * per_client // num_classes)
    assert set(counts[counts > 0].tolist()) == {part, part + 1}
    assert ((counts > 0).sum(axis=1) == per_client).all()


@pytest.mark.parametrize(("num_clients", "per_client"), [(5, 2), (5, 10), (20, 2), (3, 4)])
def test_where_the_cut_is_even_there_is_nothing_more_to_deal(num_clients, per_client):
    """Also where parts beyond K·l go to nobody: every client still has an equal share."""
    unused, dealt = (
        classes(CIFAR, 50_000, 0, num_clients=num_clients, classes_per_client=per_client, leftover=leftover)
        for leftover in ("unused", "dealt")
    )
    assert unused.unused == dealt.unused
    assert all(np.array_equal(a, b) for a, b in zip(unused.clients, dealt.clients, strict=True))


def test_classes_three_clients_of_four_drops_one_part_of_eight_classes():
    counts = classes(CIFAR, 50_000, 0, num_clients=3, classes_per_client=4).class_counts(CIFAR, 10)
    assert sorted(counts.sum(axis=0).tolist()) == [2500] * 8 + [5000] * 2


@given(data=st.data())
@hypothesis_settings(max_examples=150, deadline=None)
def test_classes_any_feasible_numbers(data):
    num_classes = data.draw(st.integers(1, 12), label="C")
    per_client = data.draw(st.integers(1, num_classes), label="l")
    num_clients = data.draw(st.integers(-(-num_classes // per_client), 30), label="K")
    parts = -(-num_clients * per_client // num_classes)
    sizes = data.draw(st.lists(st.integers(parts, parts + 20), min_size=num_classes, max_size=num_classes))
    labels = np.repeat(np.arange(num_classes), sizes)
    if num_clients > len(labels):
        return
    seed = data.draw(st.integers(0, 5))
    partition = classes(labels, len(labels), seed, num_clients=num_clients, classes_per_client=per_client)
    assert_disjoint(partition, len(labels))
    counts = partition.class_counts(labels, num_classes)
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert ((counts == 0) | (counts == np.array(sizes) // parts)).all()
    assert (counts.sum(axis=0) > 0).all()


def test_classes_is_random_by_seed():
    counts = [classes(CIFAR, 50_000, seed).class_counts(CIFAR, 10) for seed in (0, 0, 1)]
    assert (counts[0] == counts[1]).all()
    assert (counts[0] != counts[2]).any()
    first, other = (classes(CIFAR, 50_000, seed, classes_per_client=10).clients[0] for seed in (0, 1))
    assert not np.array_equal(first, other)  # the cut is random too, not only who gets what


@pytest.mark.parametrize("name", PARTITIONS)
def test_same_seed_same_partition(name):
    first, again, other = (PARTITIONS[name](CIFAR, 50_000, seed) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, again.clients, strict=True))
    assert not np.array_equal(first.clients[0], other.clients[0])


def test_iid_sizes_differ_by_one_at_most():
    partition = iid(None, 23, 0, num_clients=5)
    assert sorted(partition.sizes()) == [4, 4, 5, 5, 5]
    assert partition.unused == 0
    assert_disjoint(partition, 23)


def test_iid_mixes_the_classes():
    counts = iid(CIFAR, 50_000, 0).class_counts(CIFAR, 10)
    assert counts.sum(axis=1).tolist() == [10_000] * 5
    assert abs(counts - 1000).max() < 150  # five standard deviations


def test_dirichlet_gives_everything_and_alpha_sets_the_skew():
    even = dirichlet(CIFAR, 50_000, 0, num_clients=10, alpha=1000.0)
    skewed = dirichlet(CIFAR, 50_000, 0, num_clients=10, alpha=0.1)
    for partition in (even, skewed):
        assert partition.unused == 0
        assert_disjoint(partition, 50_000)
    assert abs(even.class_counts(CIFAR, 10) - 500).max() < 100
    shares = skewed.class_counts(CIFAR, 10) / np.array(skewed.sizes())[:, None]
    assert np.sort(shares, axis=1)[:, -2:].sum(axis=1).mean() > 0.7  # two classes make up most of a client


def test_dirichlet_draws_again_until_every_client_has_enough():
    labels = np.repeat(np.arange(2), 50)
    for seed in range(20):
        assert min(dirichlet(labels, 100, seed, num_clients=5, alpha=0.3, min_images=8).sizes()) >= 8
    with pytest.raises(FedsslError, match=r"partition\.min_images = 20 .* 1000 draws .* lower partition\.min_images"):
        dirichlet(labels, 100, 0, num_clients=5, alpha=0.1, min_images=20)


@pytest.mark.parametrize(("amount", "size"), [(0.1, 1000), (0.5, 5000), (0.01, 100)])
def test_data_amount_is_a_part_of_each_class(amount, size):
    partition = classes(CIFAR, 50_000, 0, data_amount=amount)
    assert partition.sizes() == [size] * 5
    assert partition.unused == 50_000 - 5 * size
    assert sorted(set(partition.class_counts(CIFAR, 10).ravel().tolist())) == [0, size // 2]
    whole = classes(CIFAR, 50_000, 0)
    assert all(np.isin(part, full).all() for part, full in zip(partition.clients, whole.clients, strict=True))


def test_data_amount_without_labels_is_a_part_of_the_whole():
    partition = iid(None, 1000, 0, num_clients=4, data_amount=0.1)
    assert partition.sizes() == [25] * 4
    assert partition.unused == 900


def test_save_and_load(tmp_path):
    partition = classes(CIFAR, 50_000, 0, num_clients=20, classes_per_client=3)
    path = tmp_path / "new" / "partition.json"
    partition.save(path, "classes", {"num_clients": 20, "classes_per_client": 3})
    loaded = Partition.load(path)
    assert loaded.unused == 20
    assert all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(loaded.clients, partition.clients, strict=True)
    )
    content = json.loads(path.read_text())
    assert (content["partition"], content["settings"]["classes_per_client"]) == ("classes", 3)
    assert [file.name for file in path.parent.iterdir()] == ["partition.json"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"clients": [["a"]], "unused": 0}',
        '{"clients": [[1, 2], [2]], "unused": 0}',
        '{"clients": [[[1]]], "unused": 0}',
        '{"clients": [[-1]], "unused": 0}',
        '{"unused": 0}',
    ],
)
def test_load_refuses_a_broken_file(tmp_path, text):
    path = tmp_path / "partition.json"
    path.write_text(text)
    with pytest.raises(FedsslError, match=r"partition\.json .*make it again"):
        Partition.load(path)


def test_load_missing_file(tmp_path):
    with pytest.raises(FedsslError, match="nothing"):
        Partition.load(tmp_path / "nothing.json")


TEN = np.repeat(np.arange(10), 10)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: iid(None, 3, 0, num_clients=4), r"partition\.num_clients is 4 .* only 3 images"),
        (lambda: classes(TEN, 100, 0, classes_per_client=11), r"partition\.classes_per_client is 11 .* 10 classes"),
        (lambda: classes(TEN, 100, 0, num_clients=4, classes_per_client=2), r"is 8, fewer than the 10 classes"),
        (lambda: classes(TEN, 100, 0, num_clients=60, classes_per_client=2), r"class 0 has 10 images.* 12 parts"),
        (lambda: classes(None, 100, 0), "needs labels"),
        (lambda: dirichlet(None, 100, 0), "needs labels"),
        (
            lambda: classes(TEN, 100, 0, data_amount=0.01),
            r"client 0 would have no images: raise partition\.data_amount",
        ),
    ],
)
def test_errors_name_the_field(call, text):
    with pytest.raises(FedsslError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- natural ----------------------------------------------------------------------------------------------------------

OWNERS = Owners(np.array([1, 0, 1, 3, 1, 0, 3]), ("a", "b", "empty", "d"))


def test_natural_gives_everyone_their_own():
    partition = natural(None, 7, 0, OWNERS)
    assert [indices.tolist() for indices in partition.clients] == [[1, 5], [0, 2, 4], [], [3, 6]]
    assert (partition.names, partition.unused) == (("a", "b", "empty", "d"), 0)
    assert (partition.title(3), iid(None, 6, 0, num_clients=2).title(1)) == ("client 3 (d)", "client 1")


def test_natural_leaves_out_whoever_has_one_image():
    owners = Owners(np.array([1, 0, 2, 2, 3]), ("one", "alone", "many", "single"))
    partition = natural(None, 5, 0, owners)
    assert ([part.tolist() for part in partition.clients], partition.names) == ([[2, 3]], ("many",))
    assert partition.unused == 3
    with pytest.raises(FedsslError, match="each of the 2 clients that the data name has 1 image"):
        natural(None, 2, 0, Owners(np.array([0, 1]), ("a", "b")))


def test_natural_without_owners_is_iid_with_five_or_as_many_as_asked_for():
    for count, asked in ((5, {}), (3, {"num_clients": 3})):
        partition = natural(None, 60, 1, **asked)
        expected = iid(None, 60, 1, num_clients=count)
        assert [a.tolist() for a in partition.clients] == [a.tolist() for a in expected.clients]


def test_natural_with_another_number_of_clients_is_refused():
    assert len(natural(None, 7, 0, OWNERS, num_clients=4).clients) == 4
    with pytest.raises(FedsslError, match="num_clients is 5 but the data name 4 clients"):
        natural(None, 7, 0, OWNERS, num_clients=5)


def test_natural_keeps_a_share_of_each_and_leaves_out_labelled_images():
    owners = Owners(np.repeat([0, 1], [20, 10]), ("a", "b"))
    assert natural(None, 30, 0, owners, data_amount=0.5).sizes() == [10, 5]
    dealt = deal_out(PARTITIONS["natural"], None, 30, 0, np.array([0, 25]), owners)
    assert dealt.sizes() == [19, 9]
    assert 25 not in dealt.clients[1]
    assert dealt.names == ("a", "b")


def test_names_are_saved_and_checked(tmp_path):
    path = tmp_path / "partition.json"
    natural(None, 7, 0, OWNERS).save(path)
    assert Partition.load(path).names == OWNERS.names
    path.write_text(json.dumps({"clients": [[1, 2]], "unused": 0, "names": ["a", "b"]}))
    with pytest.raises(FedsslError, match="names 2 of 1 clients"):
        Partition.load(path)
