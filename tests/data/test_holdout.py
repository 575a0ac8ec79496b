import json
from functools import partial

import numpy as np
import pytest

from fedssl.core.errors import FedsslError
from fedssl.data.holdout import choose_labelled
from fedssl.data.partition import PARTITIONS, Partition, deal_out
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from tests.helpers.small import held_by

# 200 images of class 0, 50 of class 1, 4 of class 2, in a mixed order.
UNEVEN = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [200, 50, 4]))


@pytest.mark.parametrize(("fraction", "counts"), [(0.1, [20, 5, 1]), (0.01, [2, 1, 1]), (0.25, [50, 13, 1])])
def test_stratified_by_hand(fraction, counts):
    chosen = choose_labelled(UNEVEN, 254, 0, labelled_fraction=fraction)
    assert np.bincount(UNEVEN[chosen]).tolist() == counts
    assert chosen.tolist() == sorted(set(chosen.tolist()))


def test_a_smaller_fraction_is_part_of_a_larger_one():
    few, many = (choose_labelled(UNEVEN, 254, 3, labelled_fraction=fraction) for fraction in (0.02, 0.3))
    assert set(few) < set(many)


def test_chosen_by_seed_and_not_in_order():
    first, again, other = (choose_labelled(UNEVEN, 254, seed, labelled_fraction=0.1) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, np.arange(26))


def test_first_images_as_the_authors_take_them():
    assert choose_labelled(None, 254, 0, labelled_fraction=0.1, labelled_choice="first").tolist() == list(range(25))


def test_nothing_by_default_and_labels_needed_otherwise():
    assert len(choose_labelled(None, 254, 0)) == 0
    with pytest.raises(FedsslError, match=r"data\.labelled_fraction needs labels"):
        choose_labelled(None, 254, 0, labelled_fraction=0.1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("iid", {"num_clients": 3}),
        ("classes", {"num_clients": 3, "classes_per_client": 1}),
        ("dirichlet", {"num_clients": 3}),
    ],
)
def test_no_client_gets_a_labelled_image(name, settings, tmp_path):
    labelled = choose_labelled(UNEVEN, 254, 0, labelled_fraction=0.1)
    partition = deal_out(partial(PARTITIONS[name], **settings), UNEVEN, 254, 0, labelled)
    dealt = np.concatenate(partition.clients)
    assert not set(dealt) & set(labelled)
    assert len(dealt) + partition.unused + len(labelled) == 254
    partition.save(tmp_path / "partition.json", name, settings)
    loaded = Partition.load(tmp_path / "partition.json")
    assert np.array_equal(loaded.labelled, labelled)
    assert loaded.labelled.dtype == np.int64
    assert all(np.array_equal(a, b) for a, b in zip(loaded.clients, partition.clients, strict=True))


def test_without_labelled_images_the_partition_is_what_it_was():
    from fedssl.data.partition import iid

    dealt = deal_out(partial(PARTITIONS["iid"], num_clients=3), UNEVEN, 254, 0, np.empty(0, np.int64))
    assert all(
        np.array_equal(a, b) for a, b in zip(dealt.clients, iid(UNEVEN, 254, 0, num_clients=3).clients, strict=True)
    )


def test_a_file_that_gives_a_labelled_image_to_a_client_is_refused(tmp_path):
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"clients": [[1, 2]], "unused": 0, "labelled": [2]}))
    with pytest.raises(FedsslError, match="make it again"):
        Partition.load(path)
    path.write_text(json.dumps({"clients": [[1, 2]], "unused": 0}))  # as written before there were labelled images
    assert len(Partition.load(path).labelled) == 0


def test_setting_of_every_dataset_which_a_run_obeys(tmp_path):
    for dataset in ("cifar10", "cifar100", "synthetic"):
        config = load_config("smoke", {"data.name": dataset, "data.labelled_fraction": 0.1})
        assert config.data.settings["labelled_choice"] == "stratified"
    kept = load_config("cifar10-cpu", {"data.labelled_fraction": 0.1, "data.train_images": 10000}).as_raw()["data"]
    assert (kept["name"], kept["labelled_fraction"], kept["train_images"]) == ("cifar10", 0.1, 10000)
    small = {"data.train_images": 200, "data.test_images": 20, "data.image_size": 16, "data.labelled_fraction": 0.1}
    parts = build(load("smoke", small).config)
    assert len(parts.partition.labelled) == 20
    assert "20 labelled images are held out of pre-training, for evaluation" in parts.remarks
    pixels = parts.dataset.train.pixels
    seen = {image.numpy().tobytes() for client in range(4) for image in held_by(parts, client)}
    assert not seen & {pixels[i].numpy().tobytes() for i in parts.partition.labelled}


@pytest.mark.parametrize("value", [1.0, -0.1, "ten"])
def test_bad_fractions_are_named(value):
    with pytest.raises(FedsslError, match=r"data\.labelled_fraction: .* is not a number"):
        load_config("smoke", {"data.labelled_fraction": value})
    with pytest.raises(FedsslError, match=r"data\.labelled_fractoin: unknown key \(did you mean 'labelled_fraction'"):
        load_config("smoke", {"data.labelled_fractoin": value})
