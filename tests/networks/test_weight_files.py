import pickle

import pytest
import torch
from safetensors.torch import load

from fedssl.core.errors import FedsslError
from fedssl.networks.weight_files import read_weight_file, weight_file

TENSORS = {"b": torch.arange(5.0), "a": torch.ones(3, dtype=torch.uint8), "ü": torch.zeros(2, 3)}


def test_the_same_weights_give_the_same_file(tmp_path):
    """The library writes its metadata in another order each time."""
    (content,) = {weight_file(TENSORS, {"network": "é"}) for _ in range(20)}
    (tmp_path / "x.safetensors").write_bytes(content)
    assert read_weight_file(tmp_path / "x.safetensors").about == {"network": "é"}
    found = load(content)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path, length):
    content = next(
        content
        for n in range(length)
        if (content := weight_file(TENSORS, {"x": "x" * n}))[:2] == length.to_bytes(2, "little")
    )
    (tmp_path / "x.safetensors").write_bytes(content)
    assert read_weight_file(tmp_path / "x.safetensors").about
    (tmp_path / "y.safetensors").write_bytes(pickle.dumps([{}] * 9, protocol=length >> 8))
    with pytest.raises(FedsslError, match="not an encoder but a pickle"):
        read_weight_file(tmp_path / "y.safetensors")
