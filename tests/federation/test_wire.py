"""In which numbers weights travel: bf16 and int8 blocks, the same bits on every engine and after a stop."""

from dataclasses import replace

import pytest
import torch

from fedssl.core.weights import Weights, divergence
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.messages import GlobalWeights, TrainResult, TrainTask
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import Replace
from fedssl.federation.validation import inspect
from fedssl.federation.wire import BLOCK, Wire, dequantise, quantise
from tests.faults.test_damage import Stops
from tests.helpers.faults import everything, experiment
from tests.helpers.small import digests, make_client, make_method, of, run, state_digests

LOSSY = ("bf16", "int8")
QUICK = {"rounds": 3, "evaluation.every": 0, "data.test_images": 10}


def model(encoder, **buffers):
    return GlobalWeights(Weights({"fc.weight": encoder}, buffers), Weights())


def sent_and_back(wire, weights):
    return Wire(wire).arrived(weights).encoder


def test_a_block_by_hand():
    """The largest magnitude is 127 steps; 0.6 of a step rounds to one, 0.4 to none, 2.5 to the even 2."""
    step = 0.25
    values = step * torch.tensor([[127.0, -127.0, 0.6, 0.4], [-0.6, 2.5, 100.2, 0.0]])
    whole, scale = quantise(values)
    assert scale.tolist() == [step]
    assert whole.tolist() == [[127, -127, 1, 0], [-1, 2, 100, 0]]
    assert dequantise(whole, scale).tolist() == [[31.75, -31.75, 0.25, 0.0], [-0.25, 0.5, 25.0, 0.0]]


def test_every_block_has_its_own_scale_and_the_last_may_be_short():
    values = torch.cat([torch.full((BLOCK,), 1e-3), torch.zeros(BLOCK), torch.full((2,), 50.0)]).reshape(2, -1)
    whole, scale = quantise(values)
    assert whole.shape == values.shape
    assert whole.dtype == torch.int8
    torch.testing.assert_close(scale, torch.tensor([1e-3, 0.0, 50.0]) / 127)
    torch.testing.assert_close(dequantise(whole, scale), values)
    assert whole.flatten()[BLOCK : 2 * BLOCK].abs().max() == 0, "a block of zeros stays one"


def test_values_at_the_ends_of_float32_stay_finite():
    values = torch.tensor([[3.4e38, -3.4e38], [1e-45, 0.0]])
    back = dequantise(*quantise(values))
    torch.testing.assert_close(back[0], values[0])
    tiny = torch.tensor([[3e-44, -1e-45]])  # the scale itself is one of the smallest numbers
    assert dequantise(*quantise(tiny)).abs().max() <= 127 * 1e-45


def test_bf16_by_hand():
    """Seven bits behind the leading one: 1 + 1/256 is half way and goes to the even 1, 1 + 3/512 goes up."""
    weights = model(torch.tensor([[1 + 1 / 256, 1 + 3 / 512, -3.0]]))
    assert sent_and_back("bf16", weights).parameters["fc.weight"].tolist() == [[1.0, 1 + 1 / 128, -3.0]]


@pytest.mark.parametrize(("wire", "low", "high"), [("bf16", 1.4e-3, 1.9e-3), ("int8", 3.5e-3, 6.8e-3)])
@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_the_relative_error_of_random_weights(wire, low, high, draw):
    values = draw(300, 200, generator=torch.Generator().manual_seed(0)) - (0.5 if draw is torch.rand else 0.0)
    back = sent_and_back(wire, model(values)).parameters["fc.weight"]
    assert low < float((back - values).norm() / values.norm()) < high


@pytest.mark.parametrize("wire", LOSSY)
def test_counters_stay_and_small_variances_stay_above_zero(wire):
    """In a block of int8 beside 1e4 a variance of 1e-3 would become 0."""
    variance, count = torch.tensor([1e4, 1e-3]), torch.tensor(2**40 + 1)
    back = sent_and_back(wire, model(torch.ones(2, 2), **{"bn.running_var": variance, "bn.num_batches_tracked": count}))
    assert torch.equal(back.buffers["bn.num_batches_tracked"], count)
    assert back.buffers["bn.running_var"].dtype == torch.float32
    torch.testing.assert_close(back.buffers["bn.running_var"], variance, rtol=4e-3, atol=0)


def test_fp32_is_the_weights_themselves():
    weights = GlobalWeights(of(1.0), of(2.0))
    assert Wire().encode(weights) is weights
    assert Wire().arrived(weights) is weights
    assert Wire().open(weights, weights) is weights


@pytest.mark.parametrize(("wire", "share"), [("bf16", 0.5), ("int8", (1 + 4 / BLOCK) / 4)])
def test_the_bytes_of_a_round_are_those_that_travel(tmp_path, wire, share):
    """Of a network with wide heads: the counters and, with int8, the one-dimensional tensors are a small part."""
    outcomes, _ = run(tmp_path / "a", rounds=1, wire=wire)
    plain, _ = run(tmp_path / "b", rounds=1)
    up, down = outcomes[0].results[0].num_bytes(), outcomes[0].bytes_down[0]
    assert up == down == Wire(wire).encode(make_client(make_method(), Replace()).initial_global_weights()).num_bytes()
    matrices = sum(t.numel() for t in plain[0].results[0].weights.encoder.parameters.values() if t.ndim > 1)
    matrices += sum(t.numel() for t in plain[0].results[0].weights.predictor.parameters.values() if t.ndim > 1)
    saved = plain[0].bytes_down[0] - down
    assert saved >= 4 * matrices * (1 - share) * 0.98  # short last blocks of a tiny network
    assert up < plain[0].bytes_down[0]


@pytest.mark.parametrize("wire", LOSSY)
def test_the_server_averages_what_arrived_and_the_client_keeps_its_own(tmp_path, wire):
    outcomes, store = run(tmp_path, rounds=1, wire=wire)
    client = make_client(make_method(), Replace(), wire=Wire(wire))
    kept = [store.load(k, 1).weights for k in range(4)]
    arrived = [Wire(wire).arrived(client._shared(one.online, one.predictor)) for one in kept]
    for result, expected, own in zip(outcomes[0].results, arrived, kept, strict=True):
        assert result.weights.digest == expected.digest
        assert 0 < divergence(result.weights.encoder, own.online, "l2") < 0.1, "float32 stays at the client"
    uploads = [TrainResult(k, 1, one, num_examples=20) for k, one in enumerate(arrived)]
    average = WeightedAverage()(uploads, client.initial_global_weights())
    assert digests(outcomes[0]) == (average.encoder.digest(), average.predictor.digest())


@pytest.mark.parametrize("wire", LOSSY)
def test_a_client_starts_from_what_arrived(tmp_path, wire):
    client = make_client(make_method(), Replace(), wire=Wire(wire))
    first = client.initial_global_weights()
    encoded, arrived = Wire(wire).encode(first), Wire(wire).arrived(first)
    state, _ = client.train(None, TrainTask(0, 1, accepted_round=None, global_weights=encoded))
    plain, _ = make_client(make_method(), Replace()).train(
        None, TrainTask(0, 1, accepted_round=None, global_weights=arrived)
    )
    assert state.weights.online.digest() == plain.weights.online.digest()
    assert state.weights.target.digest() == plain.weights.target.digest()


@pytest.mark.parametrize("wire", LOSSY)
def test_lambda_is_set_from_what_both_sides_see(tmp_path, wire):
    outcomes, _ = run(tmp_path, rounds=1, wire=wire)
    seen = Wire(wire).arrived(outcomes[0].state.global_weights)
    for result in outcomes[0].results:
        distance = divergence(seen.encoder, result.weights.encoder, "l2")
        assert outcomes[0].state.notes[result.client_id] == {"scale": 0.7 / distance}


@pytest.mark.parametrize("wire", LOSSY)
def test_lambda_zero_is_fedbyol_bit_for_bit(tmp_path, wire):
    ema, ema_store = run(tmp_path / "a", "fedema", wire=wire, scale=0.0, rounds=3, per_round=3)
    byol, byol_store = run(tmp_path / "b", "replace", wire=wire, rounds=3, per_round=3)
    assert [digests(one) for one in ema] == [digests(one) for one in byol]
    assert state_digests(ema_store, ema[-1]) == state_digests(byol_store, byol[-1])


@pytest.mark.parametrize(("wire", "engine"), [("bf16", "processes"), ("int8", "in-process")])
def test_engines_agree_and_a_stopped_run_ends_with_the_same_bits(tmp_path, wire, engine):
    """int8 in worker processes: tests of private runs."""
    name, setting = "BYOL + FedEMA", {"aggregation.wire_dtype": wire, **QUICK}
    experiment(name, engine="in-process", **setting).run(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        experiment(name, engine=engine, workers=2, **setting).run(tmp_path / "two", Stops(1))
    experiment(name, engine=engine, workers=2, **setting).run(tmp_path / "two")
    expected = everything(tmp_path / "one")
    assert everything(tmp_path / "two") == expected
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "exact")
    assert everything(tmp_path / "exact")["global"] != expected["global"]


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_takes_what_arrived(tmp_path, name):
    outcomes, _ = run(tmp_path, "replace", rounds=2, clients=5, wire="int8", aggregate=AGGREGATORS[name]())
    assert [len(outcome.results) for outcome in outcomes] == [5, 5]


@pytest.mark.parametrize("wire", LOSSY)
def test_clients_that_share_nothing_get_the_first_weights_and_send_none(tmp_path, wire):
    outcomes, _ = run(tmp_path, "none", wire=wire)
    assert [result.num_bytes() for outcome in outcomes for result in outcome.results] == [0] * 8


def test_the_gate_looks_at_what_travels():
    """Float32 where bf16 was agreed, a scale that is missing, negative, or so large that a weight would be infinite."""
    like = model(torch.ones(3, 3))
    tasks = {0: TrainTask(0, 1, accepted_round=None, global_weights=like)}

    def detail(wire, **changes):
        expected = Wire(wire).encode(like)
        parameters = {**expected.encoder.parameters, **{name.replace("_", "."): t for name, t in changes.items()}}
        sent = GlobalWeights(Weights({n: t for n, t in parameters.items() if t is not None}), Weights())
        reply = inspect(TrainResult(0, 1, sent, num_examples=5), tasks, expected)
        return "" if isinstance(reply, TrainResult) else reply.detail

    assert detail("bf16") == detail("int8") == ""
    assert detail("bf16", fc_weight=torch.ones(3, 3)) == "encoder fc.weight: got torch.float32, expected torch.bfloat16"
    assert detail("int8", fc_weight=torch.ones(3, 3)) == "encoder fc.weight: got torch.float32, expected torch.int8"
    scale = "fc_weight@scale"
    assert detail("int8", **{scale: None}) == "encoder fc.weight@scale: is missing"
    assert detail("int8", **{scale: torch.tensor([-1.0])}).startswith("encoder fc.weight@scale: a scale that is not")
    assert detail("int8", **{scale: torch.tensor([3e38])}).startswith("encoder fc.weight@scale: a scale that is not")
    assert detail("int8", **{scale: torch.tensor([torch.nan])}) == "encoder fc.weight@scale: NaN or infinite"


def test_a_reply_in_other_numbers_never_reaches_the_average(tmp_path):
    class Disobeys(InProcessEngine):
        """Client 1 sends float32."""

        def run_tasks(self, tasks):
            like = make_client(make_method(), Replace()).initial_global_weights()
            for reply in super().run_tasks(tasks):
                yield replace(reply, upload=like) if reply.client_id == 1 else reply

    outcomes, _ = run(tmp_path, rounds=1, wire="bf16", engine=Disobeys)
    assert [(failure.client_id, failure.code) for failure in outcomes[0].failures] == [(1, "rejected")]
    assert "expected torch.bfloat16" in outcomes[0].failures[0].detail
    assert [result.client_id for result in outcomes[0].results] == [0, 2, 3]
