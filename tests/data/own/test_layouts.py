import os

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.dataset import fingerprint
from fedssl.data.own import cache as image_cache
from fedssl.data.own.layouts import absolute, folder
from fedssl.experiment.config.layers import load_config
from tests.helpers.pictures import bomb, encoded, noise, tree, write, write_folder

SIZE = {"image_size": 24}


@pytest.fixture(autouse=True)
def _cache_elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path_factory.mktemp("cache")))


def load(path, **settings):
    return folder(path=str(path), **(SIZE | settings))


def labels(images):
    return [images.class_names[label] for label in images.labels]


# --- what becomes of a layout -----------------------------------------------------------------------------------------


def test_folder_without_classes_has_neither_labels_nor_owners(tmp_path):
    pixels = write_folder(tmp_path / "photos")
    dataset = load(tmp_path / "photos")
    assert torch.equal(dataset.train.pixels, torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
    assert (dataset.train.labels, dataset.test, dataset.owners, dataset.labelled) == (None, None, None, None)
    assert dataset.source == f"6 images of {tmp_path / 'photos'}"
    assert [one.name for one in dataset.originals][:2] == ["000.png", "001.png"]


def test_array_and_folder_of_the_same_pixels_are_the_same(tmp_path):
    pixels = write_folder(tmp_path / "photos", classes=("a", "b"))
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.repeat([0, 1], 6))
    first, second = load(tmp_path / "photos"), load(tmp_path / "x.npz")
    assert torch.equal(first.train.pixels, second.train.pixels)
    assert torch.equal(first.train.labels, second.train.labels)
    assert fingerprint(first.train) == fingerprint(second.train)


def test_silos_have_owners(tmp_path):
    write_folder(tmp_path, clients=("b", "a"), each=3)
    write(tmp_path / "a" / "x.png", noise())
    owners = load(tmp_path, layout="silos").owners
    assert owners.names == ("a", "b")
    assert owners.clients.tolist() == [0] * 4 + [1] * 3


def test_manifest_gives_clients_labels_and_evaluation_sets(tmp_path):
    write_folder(tmp_path, each=6)
    lines = ["0,s1,train,cat", "1,s2,train,dog", "2,s1,,cat", "3,,eval_train,cat", "4,,eval_train,dog", "5,,test,dog"]
    rows = "".join(f"00{line[0]}.png{line[1:]}\n" for line in lines)
    (tmp_path / "m.csv").write_text("path,client,split,label\n" + rows)
    dataset = load(tmp_path / "m.csv")
    assert labels(dataset.train) == ["cat", "dog", "cat"]
    assert (dataset.owners.names, dataset.owners.clients.tolist()) == (("s1", "s2"), [0, 1, 0])
    train, test = dataset.labelled
    assert (labels(train), labels(test)) == (["cat", "dog"], ["dog"])


def test_manifest_columns_by_other_names(tmp_path):
    write_folder(tmp_path, each=2)
    (tmp_path / "m.csv").write_text("file,site,what\n000.png,x,cat\n001.png,y,dog\n")
    dataset = load(tmp_path / "m.csv", image_column="file", client_column="site", label_column="what")
    assert (dataset.owners.names, labels(dataset.train)) == (("x", "y"), ["cat", "dog"])


def test_hugging_face_on_disk(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(names=["z", "a"])})
    rows = {"image": [{"bytes": encoded(noise(24, k)), "path": None} for k in range(4)], "label": [0, 1, 0, 1]}
    Dataset.from_dict(rows, features).save_to_disk(str(tmp_path / "hf"))
    dataset = load(tmp_path / "hf")
    assert labels(dataset.train) == ["z", "a", "z", "a"]
    assert np.array_equal(dataset.train.pixels[3].numpy(), noise(24, 3).transpose(2, 0, 1))


def test_class_numbers_are_in_the_order_of_numbers(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.stack([noise(24, k) for k in range(3)]), y=np.array([10, 9, 2]))
    assert load(tmp_path / "x.npz").train.class_names == ("2", "9", "10")


def test_one_channel(tmp_path):
    write_folder(tmp_path)
    assert load(tmp_path, channels=1).train.pixels.shape == (6, 1, 24, 24)


def test_the_fingerprint_of_cached_pixels_is_known(tmp_path):
    write_folder(tmp_path)
    dataset = load(tmp_path)
    assert dataset.train.known_fingerprint == fingerprint(type(dataset.train)(dataset.train.pixels.clone()))
    assert dataset.train.unlabelled().known_fingerprint == dataset.train.known_fingerprint
    assert dataset.train.select([1, 0]).known_fingerprint == ""


# --- evaluation sets --------------------------------------------------------------------------------------------------


def test_evaluation_apart_from_unlabelled_training(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "known", classes=("cat", "dog"), each=2)
    write_folder(tmp_path / "test", classes=("cat", "dog"), each=1)
    dataset = load(tmp_path / "train", eval_train=str(tmp_path / "known"), eval_test=str(tmp_path / "test"))
    assert dataset.train.labels is None
    train, test = dataset.labelled
    assert (len(train), len(test), train.num_classes) == (4, 2, 2)


def test_labelled_training_images_are_learnt_from_unless_others_are_given(tmp_path):
    write_folder(tmp_path / "train", classes=("b", "c", "a"), each=2)
    write_folder(tmp_path / "test", classes=("c", "b"), each=1)
    train, test = load(tmp_path / "train", eval_test=str(tmp_path / "test")).labelled
    assert (len(train), labels(test)) == (6, ["b", "c"])
    write_folder(tmp_path / "known", classes=("c", "b"), each=1)
    dataset = load(tmp_path / "train", eval_train=str(tmp_path / "known"), eval_test=str(tmp_path / "test"))
    train, test = dataset.labelled
    assert train.class_names == ("b", "c"), "numbers of evaluation have no gaps"
    assert dataset.train.class_names == ("b", "c", "a")
    assert labels(dataset.train) == ["a", "a", "b", "b", "c", "c"]


def test_a_share_of_every_class_to_test_with(tmp_path):
    write_folder(tmp_path, classes=("a", "b"), each=10)
    write(tmp_path / "only" / "x.png", noise())
    first, again = (load(tmp_path, test_fraction=0.3) for _ in range(2))
    assert labels(first.test) == ["a"] * 3 + ["b"] * 3
    assert labels(first.train) == ["a"] * 7 + ["b"] * 7 + ["only"]
    assert fingerprint(first.test) == fingerprint(again.test)
    seen = {one.name for one in first.originals} & {one.name for one in first.test_originals}
    assert seen == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_test": "flat"}, r"data\.eval_test: .*flat: 6 images, but evaluation needs labelled ones"),
        ({"eval_test": "classes"}, r"data\.eval_train: the test images have labels, the training images none"),
        ({"eval_test": "nowhere"}, r"data\.eval_test: .*nowhere: there is no such folder"),
        ({"eval_train": "classes", "eval_test": "other"}, r"data\.eval_test: the class 'z' is not among .*\(x, y\)"),
        ({"test_fraction": 0.5}, r"data\.test_fraction: .*: the images have no labels"),
        ({"test_fraction": 0.5, "eval_test": "classes"}, r"data\.test_fraction: there are test images already"),
    ],
)
def test_evaluation_sets_that_cannot_be_used(tmp_path, settings, message):
    write_folder(tmp_path / "flat")
    write_folder(tmp_path / "classes", classes=("x", "y"), each=2)
    write_folder(tmp_path / "other", classes=("x", "z"), each=2)
    given = {key: str(tmp_path / value) if key != "test_fraction" else value for key, value in settings.items()}
    with pytest.raises(FedsslError, match=message):
        load(tmp_path / "flat", **given)


def test_test_images_without_labels_are_left_alone(tmp_path):
    write_folder(tmp_path, each=3)
    (tmp_path / "m.csv").write_text("path,split\n000.png,train\n001.png,train\n002.png,test\n")
    assert load(tmp_path / "m.csv").labelled is None


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def messy(tmp_path):
    root = tmp_path / "photos"
    write_folder(root, clients=("a", "b"), each=4)
    good = encoded(noise(64), "JPEG")
    (root / "a" / "truncated.jpg").write_bytes(good[: len(good) // 2])
    (root / "a" / "empty.png").write_bytes(b"")
    (root / "a" / "text.jpg").write_text("no image")
    (root / "b" / "notes.txt").write_text("no image")
    (root / "b" / "out.png").symlink_to("/etc/hostname")
    os.mkfifo(root / "b" / "pipe.png")
    (root / "b" / "bomb.png").write_bytes(bomb(10_000))  # where PIL only warns
    return root


def test_bad_files_are_skipped_counted_and_named_all_at_once(messy):
    before = tree(messy / "a")
    dataset = load(messy, layout="silos")
    assert len(dataset.train) == 8
    assert {(one.file, one.client) for one in dataset.refused} == {
        ("a/truncated.jpg", "a"),
        ("a/empty.png", "a"),
        ("a/text.jpg", "a"),
        ("b/notes.txt", "b"),
        ("b/out.png", "b"),
        ("b/pipe.png", "b"),
        ("b/bomb.png", "b"),
    }
    assert any("left out (7 refused: " in remark for remark in dataset.remarks)
    assert tree(messy / "a") == before


@pytest.mark.parametrize("kept", ["a", "b"])
def test_strict_fails_at_the_first_and_names_it(messy, kept):
    for path in (messy / ("b" if kept == "a" else "a")).iterdir():
        path.unlink()
    with pytest.raises(FedsslError, match=rf"{kept}/.*data\.strict is on") as caught:
        load(messy, layout="silos", strict=True)
    assert "\n" not in str(caught.value)


def test_strict_stops_decoding_and_also_looks_at_what_was_cached(tmp_path, monkeypatch):
    write_folder(tmp_path, each=300)
    (tmp_path / "000.png").write_bytes(b"rubbish")
    seen, real = [], image_cache._decode
    monkeypatch.setattr(image_cache, "_decode", lambda *given: seen.append(1) or real(*given))
    with pytest.raises(FedsslError, match=r"000\.png: not an image"):
        load(tmp_path, strict=True)
    assert len(seen) < 300
    load(tmp_path)
    with pytest.raises(FedsslError, match=r"000\.png: not an image"):
        load(tmp_path, strict=True)


def test_nothing_usable(tmp_path):
    with pytest.raises(FedsslError, match=r"no image there can be used$"):
        load(tmp_path)
    for number in range(5):
        (tmp_path / f"{number}.png").write_text("x")
    with pytest.raises(FedsslError, match=r"can be used \(5 refused: 0\.png: not an image.*; …\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("", {}, r"data\.path: say where your images are: a folder, a \.npz"),
        ("nowhere", {}, r"data\.path: nowhere: there is no such folder"),
        ("nowhere.npz", {}, r"data\.path: nowhere\.npz: there is no such file"),
        ("nowhere.csv", {}, r"data\.path: nowhere\.csv: there is no such file"),
        ("x.png", {}, r"data\.path: x\.png: there is no such folder"),
        ("\udce9t\udce9", {}, r"data\.path: \\xe9t\\xe9: its name is no UTF-8"),
    ],
)
def test_places_that_are_none(tmp_path, monkeypatch, path, settings, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.png", noise())
    with pytest.raises(FedsslError, match=message):
        load(path, **settings)


def test_a_cache_among_the_images_is_refused(tmp_path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "cache"))
    with pytest.raises(FedsslError, match="nothing is ever written among your images"):
        load(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_the_config_knows_the_place_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config("folder", {"data.path": "photos", "data.eval_test": "../t", "data.eval_train": "hf:a/b"})
    assert config.data.settings["path"] == str(tmp_path / "photos")
    assert config.data.settings["eval_test"] == str(tmp_path.parent / "t")
    assert config.data.settings["eval_train"] == "hf:a/b"
    assert load_config("folder").data.settings["path"] == absolute("") == ""


def test_images_that_had_to_be_enlarged_are_remarked_with_the_smallest(tmp_path):
    write_folder(tmp_path / "p", each=3, size=24)
    write(tmp_path / "p" / "dot.png", noise(1))
    remark = "1 of 4 images are smaller than data.image_size = 16 and were enlarged; the smallest, dot.png, is 1 x 1"
    assert remark in folder(path=str(tmp_path / "p"), image_size=16).remarks
    (tmp_path / "p" / "dot.png").unlink()
    assert not any("enlarged" in text for text in folder(path=str(tmp_path / "p"), image_size=24).remarks)
