"""The attackers of the recorded runs do what the page says."""

import pytest
import torch

from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult
from scripts.byzantine import Attacked


def sent(value: float) -> GlobalWeights:
    return GlobalWeights(Weights({"w": torch.tensor([value])}, {"running_var": torch.tensor([1.0])}), Weights())


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [
        # From 1 the honest go to 3; the two attackers go to 1 − 10 · (3 − 1) = −19.
        ("weighted-average", (2 * -19 + 5 * 3) / 7),
        ("median", 3.0),
        ("trimmed-mean", 3.0),
        ("krum", 3.0),
    ],
)
def test_two_of_seven_send_ten_times_their_update_backwards(aggregator, expected):
    results = [TrainResult(client_id, 1, sent(3.0), num_examples=10) for client_id in range(7)]
    combined = Attacked(aggregator=aggregator)(results, sent(1.0))
    assert combined.encoder.parameters["w"].item() == pytest.approx(expected)
    assert combined.encoder.buffers["running_var"].item() == 1.0
