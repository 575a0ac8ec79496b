import torch
from safetensors.torch import load

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
