"""What holds for every aggregator, and the paper's weighted average by hand."""

import itertools
import weakref

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import FedEMA
from fedssl.federation.rounds import ServerState, accept, gather, make_task
from tests.helpers.small import make_server, of, result, values

NOTHING = GlobalWeights(of(0.0), of(0.0))


def random_weights(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    encoder = Weights(
        {"conv1.weight": draw(4, 3, 3, 3), "fc.bias": draw(7)},
        {
            "bn.num_batches_tracked": torch.tensor(100 + seed),
            "bn.running_mean": draw(4),
            "bn.running_var": draw(4).abs(),
        },
    )
    return GlobalWeights(encoder, Weights({"0.weight": draw(5, 7)}))


def random_results(count=5, dtype=torch.float32):
    return [TrainResult(k, 1, random_weights(k, dtype), num_examples=10 + 7 * k) for k in range(count)]


def digest(weights):
    return weights.encoder.digest(), weights.predictor.digest()


# --- the paper's ------------------------------------------------------------------------------------------------------


def test_by_hand_for_encoder_predictor_and_batchnorm_statistics():
    uploads = [result(0, (1.0, 0.0), (10.0,), num_examples=1), result(1, (5.0, 4.0), (20.0,), num_examples=3)]
    aggregated = WeightedAverage()(uploads, NOTHING)
    assert values(aggregated.encoder) == [4.0, 3.0]
    assert values(aggregated.predictor) == [17.5]
    assert aggregated.encoder.buffers["bn.running_mean"].tolist() == [400.0]


def test_one_client_alone_is_its_own_average():
    upload = result(0, (1.2345678,), (9.87654321,), num_examples=12345)
    aggregated = WeightedAverage()([upload], NOTHING)
    assert digest(aggregated) == digest(upload.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weighted_average_is_the_plain_sum_in_the_order_of_clients_bit_for_bit(dtype):
    uploads = random_results(dtype=dtype)
    total = sum(upload.num_examples for upload in uploads)
    aggregated = WeightedAverage()(uploads[::-1], random_weights(99, dtype))
    for part in ("encoder", "predictor"):
        for name, tensor in getattr(aggregated, part).tensors().items():
            clients = [getattr(upload.weights, part).tensors()[name] for upload in uploads]
            exact = clients[0] if tensor.is_floating_point() else clients[0].double()
            expected = exact * (uploads[0].num_examples / total)
            for upload, sent in zip(uploads[1:], clients[1:], strict=True):
                expected.add_(sent, alpha=upload.num_examples / total)
            expected = expected if tensor.is_floating_point() else expected.round().long()
            assert tensor.dtype == expected.dtype
            assert torch.equal(tensor, expected), name


# --- every aggregator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGGREGATORS)
def test_all_120_orders_of_five_replies_give_the_same_bits_and_the_same_lambdas(name):
    server = make_server(5, FedEMA(), AGGREGATORS[name](), lambda sent: {"all": torch.cat([p["id"] for p in sent])})
    state = ServerState(0, random_weights(99))
    uploads = [
        TrainResult(
            one.client_id, 1, one.weights, num_examples=one.num_examples, payload={"id": torch.tensor([one.client_id])}
        )
        for one in random_results()
    ]
    found, tasks = set(), {k: make_task(server, state, k) for k in range(5)}
    for order in itertools.permutations(uploads):
        engine = type("Any", (), {"run_tasks": lambda self, tasks, order=order: order})()
        after = accept(server, state, gather(server, engine, state, tasks)[0])
        lambdas = tuple(after.notes[k].get("scale") for k in range(5))  # None: Krum took this client's as they are
        found.add((digest(after.global_weights), lambdas, tuple(after.payload["all"].tolist())))
    assert len(found) == 1
    assert len(set(found.pop()[1])) == 5, "every client has a lambda of its own"


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_names_shapes_and_types_are_kept_and_nothing_given_is_changed(name, dtype):
    uploads, previous = random_results(dtype=dtype), random_weights(99, dtype)
    before = [digest(previous), *(digest(upload.weights) for upload in uploads)]
    aggregated = AGGREGATORS[name]()(uploads, previous)
    for part in ("encoder", "predictor"):
        got, given = getattr(aggregated, part), getattr(previous, part)
        assert (list(got.parameters), list(got.buffers)) == (list(given.parameters), list(given.buffers))
        for key, tensor in given.tensors().items():
            assert (got.tensors()[key].dtype, got.tensors()[key].shape) == (tensor.dtype, tensor.shape), key
    for tensor in (*aggregated.encoder.tensors().values(), *aggregated.predictor.tensors().values()):
        tensor.zero_()  # would show in what it shares memory with
    assert [digest(previous), *(digest(upload.weights) for upload in uploads)] == before


# They do not go where the clients are: each says how far to go by another measure.
OWN_MEASURE = {
    "l-dawa": "layers that turned away from the global ones count for less",
    "fedadam": "its steps have a length of their own",
}


@pytest.mark.parametrize("name", [name for name in AGGREGATORS if name not in OWN_MEASURE])
def test_clients_that_agree_are_believed(name):
    agreed = random_weights(1)
    aggregated = AGGREGATORS[name]()([TrainResult(k, 1, agreed, num_examples=10) for k in range(5)], random_weights(99))
    for part in ("encoder", "predictor"):
        for key, tensor in getattr(agreed, part).tensors().items():
            torch.testing.assert_close(getattr(aggregated, part).tensors()[key], tensor)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_an_error_at_the_second_tensor_leaves_the_state_as_it_was(name):
    uploads, state = random_results(), ServerState(0, random_weights(99))
    broken = uploads[3].weights
    encoder = Weights({**broken.encoder.parameters, "fc.bias": torch.randn(8)}, broken.encoder.buffers)  # 7 is right
    uploads[3] = TrainResult(3, 1, GlobalWeights(encoder, broken.predictor), num_examples=10)
    before = digest(state.global_weights)
    with pytest.raises(RuntimeError):
        accept(make_server(5, FedEMA(), AGGREGATORS[name]()), state, uploads)
    assert digest(state.global_weights) == before
    assert (state.notes, state.accepted_round) == ({}, {})


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_network_without_buffers_or_predictor_and_with_empty_or_boolean_tensors(name):
    def upload(k):
        buffers = {"empty": torch.zeros(0, 3), "mask": torch.tensor([True, k == 0])}
        return TrainResult(
            k, 1, GlobalWeights(Weights({"w": torch.tensor([1.0 + k])}, buffers), Weights()), num_examples=10
        )

    bare = [
        TrainResult(k, 1, GlobalWeights(Weights({"w": torch.tensor([1.0 + k])}), Weights()), num_examples=10)
        for k in range(5)
    ]
    assert list(AGGREGATORS[name]()(bare, bare[0].weights).encoder.tensors()) == ["w"]
    aggregated = AGGREGATORS[name]()([upload(k) for k in range(5)], upload(1).weights)
    assert aggregated.encoder.buffers["empty"].shape == (0, 3)
    assert aggregated.encoder.buffers["mask"].tolist() == [True, False]


# --- how many clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "needed", "named"),
    [
        ("weighted-average", {}, 1, "name"),
        ("clipped-average", {}, 1, "name"),
        ("median", {}, 1, "name"),
        ("trimmed-mean", {}, 3, "trim = 1"),
        ("trimmed-mean", {"trim": 3}, 7, "trim = 3"),
        ("krum", {}, 5, "byzantine = 1"),
        ("krum", {"byzantine": 3}, 9, "byzantine = 3"),
        ("krum", {"byzantine": 1, "selected": 6}, 7, "selected = 6"),
    ],
)
def test_too_few_clients_are_refused_before_and_in_a_round(name, settings, needed, named):
    aggregate = AGGREGATORS[name](**settings)
    aggregate.check(needed)
    aggregate(random_results(needed), random_weights(99))
    message = rf"^aggregation\.{named} needs {needed} or more clients in a round, there are {needed - 1}: "
    with pytest.raises(FedsslError, match=message):
        aggregate.check(needed - 1)
    with pytest.raises(FedsslError, match=message):
        aggregate(random_results(needed - 1), random_weights(99))


# --- how often and how many uploads are read --------------------------------------------------------------------------


class ReadEachTime:
    """A result whose weights are read anew each time, as from a file; counts reads and what is alive at once."""

    alive = most_alive = 0

    def __init__(self, client_id):
        self.client_id, self.num_examples, self.reads = client_id, 10, 0

    @property
    def weights(self):
        cls, read = type(self), random_weights(self.client_id)
        self.reads += 1
        cls.alive += 1
        cls.most_alive = max(cls.most_alive, cls.alive)
        # The tensor is what costs memory, whoever holds it.
        weakref.finalize(read.encoder.parameters["conv1.weight"], self.freed)
        return read

    @classmethod
    def freed(cls):
        cls.alive -= 1


@pytest.mark.parametrize(
    ("name", "reads", "at_once"),
    [
        ("weighted-average", 1, 1),
        ("clipped-average", 2, 1),
        ("median", 1, 9),
        ("trimmed-mean", 1, 9),
        ("krum", 1, 9),
        ("l-dawa", 1, 1),
        ("fedu2", 1, 9),
        ("fedavgm", 1, 1),
        ("fedadam", 1, 1),
    ],
)
def test_uploads_are_read_seldom_and_averages_hold_one_at_a_time(name, reads, at_once):
    tracked = type("Tracked", (ReadEachTime,), {})
    uploads = [tracked(k) for k in range(9)]
    aggregated = AGGREGATORS[name]()(uploads, random_weights(99))
    assert [upload.reads for upload in uploads] == [reads] * 9
    assert (tracked.most_alive, tracked.alive) == (at_once, 0)
    assert digest(aggregated) == digest(AGGREGATORS[name]()(equal_shares(9), random_weights(99)))


def equal_shares(count):
    return [TrainResult(k, 1, random_weights(k), num_examples=10) for k in range(count)]
