import dataclasses
import pickle
from pathlib import Path

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.standard.cifar import CIFAR10, CIFAR100, read_records, to_images


@pytest.mark.parametrize("layout", ["python", "binary", "png"])
def test_every_layout_gives_the_same_images(fake_cifar, layout):
    fake = fake_cifar
    records = read_records(getattr(fake, layout), fake.spec)
    train = to_images(records, "train", fake.spec)
    test = to_images(records, "test", fake.spec)
    assert torch.equal(train.pixels[:4], torch.from_numpy(fake.pixels["data_batch_1"]))
    assert torch.equal(train.pixels[4:], torch.from_numpy(fake.pixels["data_batch_2"]))
    assert torch.equal(test.pixels, torch.from_numpy(fake.pixels["test_batch"]))
    assert train.labels.tolist() == [*fake.labels["data_batch_1"], *fake.labels["data_batch_2"]]
    assert test.class_names == ("cat", "dog")


@pytest.mark.parametrize("layout", ["python", "binary"])
def test_two_labels_the_fine_one_counts(fake_cifar_with_two_labels, layout):
    fake = fake_cifar_with_two_labels
    test = to_images(read_records(getattr(fake, layout), fake.spec), "test", fake.spec)
    assert test.labels.tolist() == fake.labels["test_batch"].tolist()
    assert torch.equal(test.pixels, torch.from_numpy(fake.pixels["test_batch"]))


@pytest.mark.parametrize(("layout", "name"), [("python", "data_batch_2"), ("binary", "data_batch_2.bin")])
def test_a_changed_byte_is_named(fake_cifar, layout, name):
    fake = fake_cifar
    files = dict(getattr(fake, layout))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    expected = fake.md5(getattr(fake, layout)[name])
    with pytest.raises(FedsslError, match=rf"^{name} has MD5 {fake.md5(files[name])}, expected {expected}"):
        read_records(files, fake.spec)


def test_a_changed_png_label_is_named(fake_cifar):
    fake = fake_cifar
    files = fake.png
    files["test_lables.json"] = b"[1, 1, 1, 1]"
    with pytest.raises(FedsslError, match=r"^test_batch\.png has MD5"):
        read_records(files, fake.spec)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("test_batch.png", b"no picture"),
        ("test_batch.png", b"\x89PNG\r\n\x1a\n broken"),
        ("test_lables.json", b"{"),
        ("test_lables.json", b"[1]"),
    ],
)
def test_broken_png_files(fake_cifar, name, content):
    fake = fake_cifar
    with pytest.raises(FedsslError, match="png files of tiny are not readable"):
        read_records(fake.png | {name: content}, fake.spec)


def test_missing_files_are_named(fake_cifar):
    fake = fake_cifar
    files = {name: content for name, content in fake.binary.items() if name != "data_batch_2.bin"}
    with pytest.raises(FedsslError, match=r"^data_batch_2\.bin missing"):
        read_records(files, fake.spec)


class Touch:
    """A pickle of this makes a file when it is read by an ordinary unpickler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_pickle_is_not_run(fake_cifar, tmp_path):
    fake = fake_cifar
    harm = tmp_path / "harm"
    evil = pickle.dumps({b"data": Touch(harm)})
    files = fake.python | {"test_batch": evil}
    with pytest.raises(FedsslError, match="test_batch has MD5"):  # first gate: not the official file
        read_records(files, fake.spec)
    batches = [
        b if b.stem != "test_batch" else dataclasses.replace(b, python_md5=fake.md5(evil)) for b in fake.spec.batches
    ]
    with pytest.raises(FedsslError, match=r"the pickle asks for .*refused"):  # second gate: even with the right sum
        read_records(files, dataclasses.replace(fake.spec, batches=tuple(batches)))
    assert not harm.exists()
    pickle.loads(evil)
    assert harm.exists()  # so the test would have seen it


def test_official_tables():
    assert [batch.part for batch in CIFAR10.batches] == ["train"] * 5 + ["test"]
    assert len(CIFAR10.class_names) == 10
    assert len(set(CIFAR100.class_names)) == 100
    assert CIFAR100.class_names[::33] == ("apple", "forest", "raccoon", "worm")
    sums = [s for spec in (CIFAR10, CIFAR100) for batch in spec.batches for s in (batch.md5, batch.python_md5)]
    assert len(set(sums)) == 16
    assert all(len(s) == 32 for s in sums)
