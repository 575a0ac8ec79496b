import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.federation.client import handle
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.messages import GlobalWeights, TrainTask
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import FedEMA, Replace
from fedssl.federation.rounds import ServerState, accept, make_task, run_round
from tests.helpers.small import (
    digests,
    make_client,
    make_images,
    make_method,
    make_server,
    of,
    result,
    run,
    state_digests,
)


def made(folder):
    folder.mkdir()
    return folder


def test_rounds_count_from_one_and_record_what_travels(tmp_path):
    outcomes, _ = run(tmp_path, rounds=3)
    assert [outcome.state.round_number for outcome in outcomes] == [1, 2, 3]
    size = make_client(make_method(), Replace()).initial_global_weights().num_bytes()
    assert outcomes[0].bytes_down == dict.fromkeys(range(4), size)
    assert outcomes[0].results[0].num_bytes() == size


def test_the_global_model_is_the_average_of_what_was_sent(tmp_path):
    outcomes, _ = run(tmp_path, rounds=1)
    average = WeightedAverage()(outcomes[0].results, make_client(make_method(), Replace()).initial_global_weights())
    assert digests(outcomes[0]) == (average.encoder.digest(), average.predictor.digest())


def test_results_in_any_order_give_the_same_state(tmp_path):
    """An engine may bring replies as they come."""

    class Backwards(InProcessEngine):
        def run_tasks(self, tasks):
            return [handle(self.client, self.store, task) for task in reversed(tasks)]

    forwards, forwards_store = run(tmp_path / "a", "fedema", rounds=2)
    client = make_client(make_method(), FedEMA())
    state, store = ServerState(0, client.initial_global_weights()), ClientStore(made(tmp_path / "b"))
    for _ in range(2):
        outcome = run_round(make_server(4, FedEMA()), Backwards(client, store), state)
        state = outcome.state
    assert digests(forwards[-1]) == digests(outcome)
    assert state_digests(forwards_store, forwards[-1]) == state_digests(store, outcome)


def test_task_says_which_state_the_server_accepted_last():
    state = ServerState(
        4,
        GlobalWeights(of(1.0), of(2.0)),
        accepted_round={1: 3},
        notes={1: {"scale": 0.5}},
        payload={"extra": torch.ones(1)},
    )
    known, new = make_task(make_server(4, Replace()), state, 1), make_task(make_server(4, Replace()), state, 0)
    assert (known.round_number, known.accepted_round, known.note) == (5, 3, {"scale": 0.5})
    assert (new.round_number, new.accepted_round, new.note) == (5, None, {})
    assert known.payload["extra"].item() == 1.0


def test_a_lost_reply_is_trained_again_from_the_accepted_state(tmp_path):
    """Two clients trained round 2 in vain; the repeated round gives the same bits as if nothing had happened."""
    expected, expected_store = run(tmp_path / "a", "fedema", rounds=2)
    client = make_client(make_method(), FedEMA())
    server, store = make_server(4, FedEMA()), ClientStore(made(tmp_path / "b"))
    engine = InProcessEngine(client, store)
    first = run_round(server, engine, ServerState(0, client.initial_global_weights()))
    for k in (0, 2):
        handle(client, store, make_task(server, first.state, k))  # its reply never arrives
    second = run_round(server, engine, first.state)
    assert digests(second) == digests(expected[-1])
    assert state_digests(store, second) == state_digests(expected_store, expected[-1])


def test_notes_are_made_for_clients_of_the_round_only():
    server = make_server(4, FedEMA(between="global-local"))
    state = ServerState(0, GlobalWeights(of(0.0), of(0.0)), notes={9: {"scale": 1.5}})
    after = accept(server, state, [result(0, (0.0,), (0.0,)), result(1, (2.0,), (0.0,))])
    assert after.notes == {9: {"scale": 1.5}, 0: {"scale": 0.7}, 1: {"scale": 0.7}}  # both 1 from the mean
    assert after.accepted_round == {0: 1, 1: 1}


def test_payloads_go_up_are_pooled_and_come_down_again(tmp_path):
    """Room for methods that share more than weights."""
    received = []
    method = make_method("simclr")
    method.payload = lambda: {"features": torch.full((2,), 3.0)}
    method.receive = lambda payload: received.append(payload.get("features"))
    method.pool = lambda payloads: {"features": torch.cat([p["features"] for p in payloads])}
    outcomes, _ = run(tmp_path, Replace(), clients=4, client=make_client(method, Replace()))
    assert received[:4] == [None] * 4
    assert all(torch.equal(features, torch.full((8,), 3.0)) for features in received[4:])
    weights = outcomes[0].results[0].weights.num_bytes()
    assert outcomes[0].results[0].num_bytes() == weights + 8
    assert outcomes[1].bytes_down[0] == weights + 32


def test_nan_is_stopped_at_the_client_and_named():
    client = make_client(make_method(), Replace(), training=LocalTraining(epochs=3, batch_size=8, lr=1e30))
    with pytest.raises(FedsslError, match=r"client 2, round 1: .* lower local_training\.lr"):
        client.train(None, TrainTask(2, 1, accepted_round=None, global_weights=client.initial_global_weights()))


def test_client_state_holds_what_the_rule_needs_next_time(tmp_path):
    _, store = run(tmp_path, "fedema", rounds=2, between="before-after")
    state = store.load(0, 2)
    assert state.last_round == 2
    assert set(state.scalars) == {"scale", "training_divergence"}


def test_labels_are_not_part_of_what_a_client_gets():
    images = make_images(8)
    assert images.labels is not None
    assert images.unlabelled().labels is None
