"""Against the real library: datasets that it saved to disk, and one that it loads by name."""

import sys

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value, disable_progress_bars

from fedssl.core.errors import FedsslError
from fedssl.data.own.decoding import Decoding, RefusedError, decode_file
from fedssl.data.own.hugging_face import find_in_dataset, is_saved_dataset
from tests.helpers.pictures import encoded, noise, write

COLUMNS = {"image": "", "label": "", "client": ""}
FEATURES = Features({"picture": Image(), "kind": ClassLabel(names=["cat", "dog"]), "site": Value("string")})
disable_progress_bars()


def examples(count=4, first=0):
    return {
        "picture": [{"bytes": encoded(noise(8, first + number)), "path": None} for number in range(count)],
        "kind": [number % 2 for number in range(count)],
        "site": [f"s{number // 2}" for number in range(count)],
    }


def saved(path, content):
    content.save_to_disk(str(path))
    return str(path)


def pixels(found, number):
    with found.source.opened() as read, read(number) as file:
        return decode_file(file, Decoding(8)).pixels


def test_splits_columns_by_type_and_pixels(tmp_path):
    parts = {"train": examples(4), "validation": examples(2, 10), "test": examples(2, 20)}
    place = saved(tmp_path / "x", DatasetDict({k: Dataset.from_dict(v, FEATURES) for k, v in parts.items()}))
    assert is_saved_dataset(tmp_path / "x")
    found = find_in_dataset(place, COLUMNS)
    assert [(s.name, s.label, s.part) for s in found.samples] == [
        ("train, image 0", "cat", "train"),
        ("train, image 1", "dog", "train"),
        ("train, image 2", "cat", "train"),
        ("train, image 3", "dog", "train"),
        ("test, image 0", "cat", "eval_test"),
        ("test, image 1", "dog", "eval_test"),
    ]
    assert found.remarks == ("the splits validation are not used",)
    for number, seed in enumerate([0, 1, 2, 3, 20, 21]):
        assert np.array_equal(pixels(found, number), noise(8, seed).transpose(2, 0, 1))


def test_clients_by_setting_and_labels_left_out(tmp_path):
    place = saved(tmp_path / "x", Dataset.from_dict(examples(), FEATURES))
    found = find_in_dataset(place, COLUMNS | {"client": "site"}, labels=False)
    assert [(s.client, s.label) for s in found.samples] == [("s0", None)] * 2 + [("s1", None)] * 2
    assert found.clients == ("s0", "s1")


def test_one_dataset_with_chosen_rows(tmp_path):
    """`select` keeps a table of row numbers beside the data."""
    place = saved(tmp_path / "x", Dataset.from_dict(examples(), FEATURES).select([3, 1]))
    found = find_in_dataset(place, COLUMNS)
    assert [s.label for s in found.samples] == ["dog", "dog"]
    assert np.array_equal(pixels(found, 0), noise(8, 3).transpose(2, 0, 1))


def test_plain_label_columns_and_missing_classes(tmp_path):
    table = {"image": examples()["picture"], "label": ["a", "b", None, "a"]}
    place = saved(tmp_path / "x", Dataset.from_dict(table, Features({"image": Image(), "label": Value("string")})))
    assert [s.label for s in find_in_dataset(place, COLUMNS).samples] == ["a", "b", None, "a"]
    unknown = examples() | {"kind": [0, -1, 1, -1]}
    place = saved(tmp_path / "y", Dataset.from_dict(unknown, FEATURES))
    assert [s.label for s in find_in_dataset(place, COLUMNS).samples] == ["cat", None, "dog", None]


def test_by_name(tmp_path, monkeypatch):
    """A folder with a Parquet file is to the library what a name on the hub is."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repository" / "data").mkdir(parents=True)
    Dataset.from_dict(examples(), FEATURES).to_parquet(str(tmp_path / "repository" / "data" / "train.parquet"))
    found = find_in_dataset(f"hf:{tmp_path / 'repository'}", COLUMNS)
    assert [s.label for s in found.samples] == ["cat", "dog", "cat", "dog"]
    assert np.array_equal(pixels(found, 2), noise(8, 2).transpose(2, 0, 1))
    assert (tmp_path / "cache").is_dir()


def test_stamps_tell_datasets_apart(tmp_path):
    first, other = (
        find_in_dataset(saved(tmp_path / str(seed), Dataset.from_dict(examples(4, seed), FEATURES)), COLUMNS)
        for seed in (0, 50)
    )
    numbers = [0, 1]
    assert list(first.source.stamps(numbers)) == list(first.source.stamps(numbers))
    assert list(first.source.stamps(numbers)) != list(other.source.stamps(numbers))
    assert list(first.source.stamps(numbers)) != list(first.source.stamps([0, 2]))


def test_a_dataset_that_points_elsewhere_is_not_followed(tmp_path):
    path = write(tmp_path / "secret.png", noise(8))
    source = find_in_dataset(saved(tmp_path / "x", Dataset.from_dict(examples(), FEATURES)), COLUMNS).source
    pointing = Dataset.from_dict(
        {"picture": [{"bytes": None, "path": str(path)}]}, Features({"picture": Image(decode=False)})
    )
    source.splits[:] = [pointing]
    with source.opened() as read, pytest.raises(RefusedError, match="does not hold the image itself"):
        read(0)


@pytest.mark.parametrize(
    ("features", "columns", "message"),
    [
        ({"a": Image(), "b": Image()}, {}, r"2 of its columns \(a, b\) may be the image: say which with data\.image"),
        ({"a": Value("string")}, {}, r"0 of its columns \(a\) may be the image"),
        ({"a": Image()}, {"image": "c"}, r"it has no column 'c' \(data\.image_column\)"),
        ({"a": Image()}, {"client": "c"}, r"it has no column 'c' \(data\.client_column\)"),
        (
            {"a": Image(), "b": ClassLabel(names=["x"]), "c": ClassLabel(names=["x"])},
            {},
            r"2 of its columns \(a, b, c\) may be the label: say which with data\.label_column",
        ),
    ],
)
def test_columns_that_cannot_be_told(tmp_path, features, columns, message):
    place = saved(tmp_path / "x", Dataset.from_dict({name: [None] for name in features}, Features(features)))
    with pytest.raises(FedsslError, match=message):
        find_in_dataset(place, COLUMNS | columns)


def test_no_training_split_and_what_is_no_dataset(tmp_path):
    parts = {name: Dataset.from_dict(examples(), FEATURES) for name in ("dev", "test")}
    with pytest.raises(FedsslError, match="splits dev, test, none of them is 'train'"):
        find_in_dataset(saved(tmp_path / "x", DatasetDict(parts)), COLUMNS)
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "state.json").write_text("{}")
    with pytest.raises(FedsslError, match="cannot be loaded") as caught:
        find_in_dataset(str(tmp_path / "y"), COLUMNS)
    assert "\n" not in str(caught.value)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedsslError, match=r'pip install "fedssl\[hf\]"'):
        find_in_dataset("hf:someone/something", COLUMNS)
