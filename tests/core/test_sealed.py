"""A sealed folder is whole and as it was written, or it is refused."""

import gc
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedssl.core.checksums import measure
from fedssl.core.errors import DamagedError, StorageError
from fedssl.core.sealed import MANIFEST, TENSORS, named_tensors, rounds_in, seal, unseal
from tests.helpers.small import of

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


def test_every_kind_of_tensor_is_written_and_read_as_the_library_does_it(tmp_path):
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    tensors = {str(kind): torch.arange(-3, 3).reshape(2, 3).to(kind) for kind in (*kinds, torch.int8)}
    tensors |= {"u8": torch.arange(5, dtype=torch.uint8), "bool": torch.tensor([True, False]), "one": torch.tensor(7.5)}
    tensors |= {"none": torch.empty(0, 4), "odd": torch.ones(1, dtype=torch.uint8)}
    tensors['ü / "quoted"'] = torch.rand(3, 4).t()
    seal(tmp_path / "a", tensors, {})
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs")
    assert (tmp_path / "a" / TENSORS).read_bytes() == (tmp_path / "theirs").read_bytes()
    found, expected = unseal(tmp_path / "a").tensors(), load_file(tmp_path / "a" / TENSORS)
    assert found.keys() == expected.keys() == tensors.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_what_is_read_is_a_copy_on_write(tmp_path):
    make(tmp_path / "a")
    unseal(tmp_path / "a").tensors("payload/")["x"].zero_()
    assert unseal(tmp_path / "a").tensors("payload/")["x"].tolist() == [0, 1, 2], "the file is as it was"


def test_reading_keeps_no_memory(tmp_path):
    """The library's own reader keeps 64 bytes of every tensor for ever."""
    seal(tmp_path / "a", {f"t{number}": torch.ones(4) for number in range(100)}, {})
    sealed, held = unseal(tmp_path / "a"), []
    for _ in range(3):
        for _ in range(200):
            sealed.tensors()
        gc.collect()
        status = Path("/proc/self/status").read_text()
        held.append(int(status.split("RssAnon:")[1].split()[0]))
    assert held[2] - held[1] < 600, f"{held} kB: 20,000 tensors were read in each step"


def test_the_manifest_is_json_that_names_the_checksum_of_the_tensors(tmp_path):
    make(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())
    assert manifest["tensors"] == measure(tmp_path / "a" / TENSORS)
    assert len(manifest["tensors"]["sha256"]) == len(manifest["sha256"]) == 64


def test_nobody_else_on_the_machine_reads_what_a_client_remembers(tmp_path):
    make(tmp_path / "a")
    assert (tmp_path / "a" / TENSORS).stat().st_mode & 0o077 == 0


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
