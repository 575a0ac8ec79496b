import itertools

import torch
from small import result, values

from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation import weighted_average
from fedssl.weights import Weights


def test_by_hand_for_encoder_predictor_and_batchnorm_statistics():
    uploads = [result(0, (1.0, 0.0), (10.0,), num_examples=1), result(1, (5.0, 4.0), (20.0,), num_examples=3)]
    aggregated = weighted_average(uploads)
    assert values(aggregated.encoder) == [4.0, 3.0]
    assert values(aggregated.predictor) == [17.5]
    assert aggregated.encoder.buffers["bn.running_mean"].tolist() == [400.0]


def test_one_client_alone_is_its_own_average():
    upload = result(0, (1.2345678,), (9.87654321,), num_examples=12345)
    aggregated = weighted_average([upload])
    assert aggregated.encoder.digest() == upload.weights.encoder.digest()
    assert aggregated.predictor.digest() == upload.weights.predictor.digest()


def test_all_120_orders_of_five_replies_give_the_same_bits():
    generator = torch.Generator().manual_seed(0)
    uploads = [
        TrainResult(
            k,
            1,
            GlobalWeights(Weights({"w": torch.randn(100, generator=generator)}), Weights()),
            num_examples=10 + 7 * k,
        )
        for k in range(5)
    ]
    assert len({weighted_average(order).encoder.digest() for order in itertools.permutations(uploads)}) == 1
