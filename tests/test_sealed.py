"""A sealed folder is whole and as it was written, or it is refused."""

import json
import random

import pytest
import torch
from small import of

from fedssl.errors import DamagedError, StorageError
from fedssl.sealed import MANIFEST, TENSORS, named_tensors, rounds_in, seal, unseal

FACTS = {"round": 3, "notes": {"1": {"scale": 1 / 3}}, "name": "ü"}


def make(folder):
    tensors = named_tensors("encoder", of(0.1, 2.0)) | {"payload/x": torch.arange(3), "flag": torch.tensor(True)}
    return seal(folder, tensors, FACTS)


def test_round_trip_is_exact(tmp_path):
    make(tmp_path / "a")
    back = unseal(tmp_path / "a")
    assert back.facts == FACTS
    assert back.weights("encoder").digest() == of(0.1, 2.0).digest()
    assert back.tensors("payload/")["x"].tolist() == [0, 1, 2]
    assert back.tensors()["flag"].item() is True


def test_the_manifest_is_json_that_names_the_checksum_of_the_tensors(tmp_path):
    make(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())
    assert manifest["tensors"]["bytes"] == (tmp_path / "a" / TENSORS).stat().st_size
    assert len(manifest["tensors"]["sha256"]) == len(manifest["sha256"]) == 64


def test_an_older_folder_of_the_same_name_is_replaced(tmp_path):
    make(tmp_path / "a")
    seal(tmp_path / "a", {"other": torch.ones(1)}, {"round": 4})
    assert unseal(tmp_path / "a").facts == {"round": 4}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
def test_every_bit_counts(tmp_path, name):
    """100 random flips in each file, and each one is noticed."""
    make(tmp_path / "a")
    path, stream = tmp_path / "a" / name, random.Random(0)
    whole = path.read_bytes()
    for _ in range(100):
        position, bit = stream.randrange(len(whole)), stream.randrange(8)
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=rf"{name}: damaged"):
            unseal(tmp_path / "a")
    path.write_bytes(whole)
    assert unseal(tmp_path / "a").facts == FACTS


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
def test_every_truncation_is_noticed(tmp_path, name):
    make(tmp_path / "a")
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    for length in range(0, len(whole), max(len(whole) // 100, 1)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=rf"{name}: damaged"):
            unseal(tmp_path / "a")
    path.write_bytes(whole + b"\n")
    with pytest.raises(DamagedError, match=name):
        unseal(tmp_path / "a")
    path.unlink()
    with pytest.raises(DamagedError, match=rf"{name}: cannot be read \(No such file"):
        unseal(tmp_path / "a")


def test_a_fact_that_is_not_a_number_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        seal(tmp_path / "a", {}, {"loss": float("nan")})
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"file/a: cannot be written: File exists"):
        make(tmp_path / "file" / "a")


def test_rounds_are_found_in_order_whatever_else_lies_there(tmp_path):
    for name in (
        "round-000010",
        "round-000002",
        "round-1000000",
        "damaged-round-000003-1",
        "round-000001.7.unfinished",
    ):
        (tmp_path / name).mkdir()
    assert rounds_in(tmp_path) == [2, 10, 1_000_000]
    assert rounds_in(tmp_path / "nothing") == []
