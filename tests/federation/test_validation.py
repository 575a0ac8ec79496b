"""The gate before aggregation: FAULTS 23–25."""

import math

import pytest
import torch

from fedssl.core.errors import StorageError
from fedssl.core.weights import Weights
from fedssl.federation.messages import Failure, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.validation import inspect
from tests.helpers.small import of

LIKE = GlobalWeights(of(1.0, 2.0), of(3.0))
TASKS = {k: TrainTask(k, 5, accepted_round=None, global_weights=LIKE) for k in (0, 1)}


def reply(encoder=None, num_examples=10, client_id=1, round_number=5, scalars=None, payload=None):
    weights = GlobalWeights(encoder or of(5.0, 6.0), of(7.0))
    return TrainResult(
        client_id,
        round_number,
        weights,
        num_examples=num_examples,
        scalars=scalars or {"loss": 1.0},
        payload=payload or {},
    )


def changed(name, tensor):
    weights = of(5.0, 6.0)
    kind = "parameters" if name in weights.parameters else "buffers"
    return Weights(**{**vars(weights), kind: {**getattr(weights, kind), name: tensor}})


def test_a_good_reply_passes_as_it_is():
    good = reply()
    assert inspect(good, TASKS, LIKE) is good
    failure = Failure(1, 5, "exception")
    assert inspect(failure, TASKS, LIKE) is failure


@pytest.mark.parametrize("count", [0, -3, math.nan, 1e12, 10**12, 2.0, True, "10", None])
def test_an_impossible_number_of_images_is_rejected(count):
    found = inspect(reply(num_examples=count), TASKS, LIKE)
    assert (found.code, found.client_id) == ("rejected", 1)
    assert f"num_examples is {count!r}" in found.detail


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["conv1.weight", "bn.running_mean"])
def test_one_value_that_is_not_finite_is_rejected(name, value):
    tensor = {**of(5.0, 6.0).tensors()}[name].clone()
    tensor.view(-1)[-1] = value
    assert inspect(reply(changed(name, tensor)), TASKS, LIKE).detail == f"encoder {name}: NaN or infinite"


def test_numbers_and_payloads_must_be_finite_too():
    assert inspect(reply(scalars={"training_divergence": math.nan}), TASKS, LIKE).detail == (
        "training_divergence is nan, not a number up to 1e+100"
    )
    broken = inspect(reply(payload={"features": torch.tensor([1.0, math.inf])}), TASKS, LIKE)
    assert broken.detail == "payload features: NaN or infinite"


@pytest.mark.parametrize(
    ("encoder", "detail"),
    [
        (of(5.0), r"encoder conv1.weight: got shape (1, 1, 1, 1), expected (2, 1, 1, 1)"),  # it would broadcast
        (changed("conv1.weight", torch.ones(2, 1)), "encoder conv1.weight: got shape (2, 1), expected (2, 1, 1, 1)"),
        (
            changed("conv1.weight", torch.ones(2, 1, 1, 1).double()),
            "encoder conv1.weight: got torch.float64, expected torch.float32",
        ),
        (changed("extra", torch.ones(1)), "encoder extra: is not part of the model"),
        (Weights(of(5.0, 6.0).parameters), "encoder bn.running_mean: is missing"),
        (Weights({}, of(1.0).buffers), "encoder conv1.weight: is missing"),
    ],
)
def test_another_shape_dtype_or_key_is_rejected_with_got_and_expected(encoder, detail):
    found = inspect(reply(encoder), TASKS, LIKE)
    assert (found.code, found.detail) == ("rejected", detail)


def test_a_finite_value_that_would_make_the_average_infinite_is_its_senders_failure():
    found = inspect(reply(of(1.0, 3e38)), TASKS, LIKE)
    assert (found.client_id, found.detail) == (1, "encoder conv1.weight: a value that is too large")
    like = GlobalWeights(of(1.0), Weights({}, {"count": torch.tensor(1)}))
    sent = GlobalWeights(of(1.0), Weights({}, {"count": torch.tensor(2**62)}))
    assert (
        inspect(TrainResult(1, 5, sent, num_examples=10), TASKS, like).detail
        == "predictor count: a value that is too large"
    )


@pytest.mark.parametrize(
    ("scalars", "detail"),
    [
        ({"loss": 1.0}, "seconds is missing"),
        ({"loss": 1.0, "seconds": None}, "seconds is None, not a number up to 1e+100"),
        ({"loss": 1.0, "seconds": True}, "seconds is True, not a number up to 1e+100"),
        (
            {"loss": 10**400, "seconds": 1.0},
            "loss is 100000000000000000...0000000000000000000, not",
        ),
        ({"loss": 1.0, "seconds": -1}, "seconds is -1, not from 0 to 9007199254740992"),
        ({"\x1b[2J": 1.0}, "'\\x1b[2J' is no name of a number"),
        (dict.fromkeys(map("n{}".format, range(65)), 0), "{'n0': 0, 'n1': 0, 'n10': 0, 'n11': 0, ...} is no table of"),
    ],
)
def test_numbers_that_are_none_or_missing_are_rejected(scalars, detail):
    found = inspect(reply(scalars=scalars), TASKS, LIKE, needed=("loss", "seconds"))
    assert found.code == "rejected"
    assert found.detail.startswith(detail)


def test_whatever_happens_while_a_reply_is_looked_at_is_its_senders_failure_and_fit_to_be_shown():
    def raises(payload):
        raise RuntimeError("\x1b[31m[/red]\ud800\n" + "x" * 10**6)

    found = inspect(reply(), TASKS, LIKE, raises)
    assert (found.client_id, found.code) == (1, "rejected")
    assert found.detail.startswith(r"RuntimeError: \x1b[31m[/red]\ud800\nxxx")
    assert found.detail.isprintable()
    assert len(found.detail) < 250

    def full(payload):
        raise StorageError("full")

    with pytest.raises(StorageError):
        inspect(reply(), TASKS, LIKE, full)


def test_a_variance_below_zero_is_rejected():
    like = GlobalWeights(of(1.0), Weights({}, {"bn.running_var": torch.ones(2)}))
    sent = GlobalWeights(of(1.0), Weights({}, {"bn.running_var": torch.tensor([1.0, -0.1])}))
    assert (
        inspect(TrainResult(1, 5, sent, num_examples=10), TASKS, like).detail
        == "predictor bn.running_var: a variance below 0"
    )


def test_the_predictor_is_looked_at_too():
    sent = TrainResult(1, 5, GlobalWeights(of(5.0, 6.0), of(math.nan)), num_examples=10)
    assert inspect(sent, TASKS, LIKE).detail.startswith("predictor ")


def test_replies_that_nobody_asked_for():
    assert inspect(reply(client_id=7), TASKS, LIKE).code == "not-asked"
    stale = inspect(reply(round_number=4), TASKS, LIKE)
    assert (stale.code, stale.detail) == ("wrong-round", "a reply to round 4 came in round 5")
