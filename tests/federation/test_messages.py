import torch

from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights
from tests.helpers.small import of


def test_global_weights_come_back_from_their_names_beside_other_tensors():
    weights = GlobalWeights(of(1.0, 2.0), of(3.0))
    named = weights.named()
    assert sorted(named) == [
        "encoder/buffers/bn.running_mean",
        "encoder/parameters/conv1.weight",
        "predictor/buffers/bn.running_mean",
        "predictor/parameters/conv1.weight",
    ]
    again = GlobalWeights.from_named({"payload/encoder/parameters/x": torch.ones(1), **named})
    assert again.digest == weights.digest
    assert [*again.encoder.buffers] == ["bn.running_mean"], "parameters and buffers stay apart"


def test_empty_weights_have_no_tensor_and_no_byte():
    assert GlobalWeights(Weights(), Weights()) == GlobalWeights.EMPTY
    assert GlobalWeights.EMPTY.named() == {}
    assert GlobalWeights.EMPTY.num_bytes() == 0
    assert GlobalWeights.from_named({}) == GlobalWeights.EMPTY
