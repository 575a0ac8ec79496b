"""Clients that fail in a round: FAULTS 13–17, 21, 23, 25, 27, 29."""

import itertools
import shutil
import time
from dataclasses import replace

import pytest
import torch

from fedssl.core.errors import RoundError, StorageError
from fedssl.federation.client import attempt, handle
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.messages import Failure, GlobalWeights, TrainTask
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import FedEMA, NoUpdate, Replace
from fedssl.federation.rounds import ServerState, TooFewClientsError, accept, gather, make_task, run_round
from tests.helpers.small import digests, make_client, make_images, make_method, make_server, of, result, state_digests


class Federation:
    """Four tiny clients, an engine that can be disturbed, and a server."""

    workers, idle_seconds = 1, 0.0

    def __init__(self, folder, rule=None, disturb=lambda task, reply: [reply], **options):
        self.rule = rule or FedEMA()
        self.client = make_client(make_method(), self.rule)
        folder.mkdir(exist_ok=True)
        self.store = ClientStore(folder)
        self.server = make_server(4, self.rule, pool=self.client.method.pool, **options)
        self.state = ServerState(0, self.client.initial_global_weights())
        self.disturb, self.asked = disturb, []

    def run_tasks(self, tasks):
        for task in tasks:
            self.asked.append((task.round_number, task.client_id))
            yield from self.disturb(task, attempt(self.client, self.store, task))

    def round(self):
        outcome = run_round(self.server, self, self.state)
        self.state = outcome.state
        return outcome


def fails(*where):
    """Client k of round r fails for every (r, k)."""

    def disturb(task, reply):
        if (task.round_number, task.client_id) in where:
            return [Failure(task.client_id, task.round_number, "exception", detail="ValueError: no")]
        return [reply]

    return disturb


def test_the_round_goes_on_without_the_one_that_failed(tmp_path):
    federation = Federation(tmp_path, disturb=fails((2, 1)))
    first = federation.round()
    second = federation.round()
    assert [one.client_id for one in second.results] == [0, 2, 3]
    assert [str(failure) for failure in second.failures] == ["client 1: exception (ValueError: no)"]
    average = WeightedAverage()(second.results, first.state.global_weights)
    assert digests(second) == (average.encoder.digest(), average.predictor.digest()), "weights are renormalised"
    assert second.state.accepted_round == {0: 2, 1: 1, 2: 2, 3: 2}
    assert second.state.notes[1] == first.state.notes[1]
    third = federation.round()
    assert [one.client_id for one in third.results] == [0, 1, 2, 3], "it is tried again"
    assert third.results[1].scalars["ema"] == 0.0, "it missed a round: it starts from the global weights"


def test_its_state_is_as_before_the_round(tmp_path):
    federation = Federation(tmp_path)
    before = state_digests(federation.store, federation.round())
    images_of = federation.client.images_of

    def raising(client_id):
        if client_id == 2:
            raise ValueError("no image")
        return images_of(client_id)

    federation.client.images_of = raising
    outcome = federation.round()
    (failure,) = outcome.failures
    assert (failure.client_id, failure.code, failure.detail) == (2, "exception", "ValueError: no image")
    assert "raising" in failure.trace
    assert state_digests(federation.store, outcome)[2] == before[2]
    assert not federation.store.path(2, 2).exists()


def test_a_client_that_raises_in_mid_epoch_is_a_failure(tmp_path):
    federation = Federation(tmp_path)

    def watch(text, done, total, client, images):
        if (client, done) == (1, 2):
            raise RuntimeError("at batch 2")

    replies = [
        attempt(federation.client, federation.store, make_task(federation.server, federation.state, k), watch)
        for k in range(2)
    ]
    assert replies[0].client_id == 0
    assert replies[1] == replace(Failure(1, 1, "exception", detail="RuntimeError: at batch 2"), trace=replies[1].trace)


def test_nan_is_stopped_at_the_client_and_never_reaches_the_average(tmp_path):
    federation = Federation(tmp_path)
    federation.client.training = LocalTraining(epochs=3, batch_size=8, lr=1e30)
    task = make_task(federation.server, federation.state, 0)
    reply = attempt(federation.client, federation.store, task)
    assert reply.code == "non-finite"
    assert "lower local_training.lr" in reply.detail
    assert not federation.store.path(0, 1).exists()


def test_the_disk_is_not_the_clients_fault(tmp_path, monkeypatch):
    federation = Federation(tmp_path)
    monkeypatch.setattr("fedssl.core.sealed.write_tensors", lambda *a: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StorageError, match="full"):
        federation.round()


def test_a_damaged_state_is_a_failure_of_its_own_kind(tmp_path):
    federation = Federation(tmp_path)
    federation.round()
    (federation.store.path(3, 1) / "tensors.safetensors").write_bytes(b"")
    (failure,) = federation.round().failures
    assert (failure.client_id, failure.code) == (3, "state-damaged")
    assert 'failures.damaged_state = "start-over"' in failure.detail


@pytest.mark.parametrize("rule", [FedEMA(), NoUpdate()])
def test_a_client_with_a_damaged_state_may_start_over_from_the_global_model(tmp_path, rule):
    """As in its first round, also where a client that shares nothing gets no weights with its task."""
    federation = Federation(tmp_path, rule)
    federation.round()
    task = replace(make_task(federation.server, federation.state, 3), accepted_round=None)
    shutil.rmtree(federation.store.path(3, 1))
    federation.client.start_over = True
    second = federation.round()
    assert second.failures == []
    assert [one.scalars.get("started_over") for one in second.results] == [None, None, None, 1.0]
    expected, _ = federation.client.train(None, task)
    assert state_digests(federation.store, second)[3][0] == expected.weights.online.digest()
    assert [one.scalars.get("started_over") for one in federation.round().results] == [None] * 4


def test_a_straggler_is_left_behind(tmp_path):
    federation = Federation(tmp_path)
    slow = lambda text, done, total, client, images: time.sleep(0.05 if client == 2 else 0)  # noqa: E731
    federation.run_tasks = InProcessEngine(federation.client, federation.store, slow, 600.0).run_tasks
    assert federation.round().failures == []
    task = make_task(federation.server, federation.state, 2)
    late = attempt(federation.client, federation.store, task, slow, 0.01)
    assert late.code == "timeout"
    assert late.detail.endswith("after more than 0.01 s")


def test_too_few_are_asked_again_and_then_the_run_stops_with_their_names(tmp_path):
    federation = Federation(tmp_path, disturb=fails(*[(1, k) for k in (0, 2, 3)]), retries=2)
    before = federation.state.global_weights.digest
    with pytest.raises(TooFewClientsError, match=r"round 1: 1 clients delivered, 2 are needed") as error:
        federation.round()
    for text in ("client 0: exception (ValueError: no)", "client 2", "client 3", "run the same command again"):
        assert text in str(error.value)
    assert "client 1" not in str(error.value)
    assert error.value.exit_code == 4
    assert len(error.value.failures) == 9
    assert federation.asked.count((1, 0)) == 3
    assert federation.asked.count((1, 1)) == 1, "who delivered is not asked again"
    assert federation.state.global_weights.digest == before


def test_a_second_try_may_be_enough(tmp_path):
    tries = []

    def disturb(task, reply):
        tries.append(task.client_id)
        return [] if tries.count(task.client_id) == 1 and task.client_id > 0 else [reply]

    outcome = Federation(tmp_path, disturb=disturb).round()
    assert [one.client_id for one in outcome.results] == [0, 1, 2, 3]
    assert [(f.client_id, f.code) for f in outcome.failures] == [(1, "no-reply"), (2, "no-reply"), (3, "no-reply")]


@pytest.mark.parametrize(
    ("asked", "min_clients", "needed"), [(4, None, 2), (5, None, 3), (1, None, 1), (4, 1, 1), (4, 4, 4), (3, 4, 3)]
)
def test_quorum(asked, min_clients, needed):
    assert make_server(9, Replace(), min_clients=min_clients).quorum(asked) == needed


def test_duplicates_replays_and_strangers_are_named_and_counted_once(tmp_path):
    kept = []

    def disturb(task, reply):
        kept.append(reply)
        if task.round_number == 2 and task.client_id == 1:
            stranger = replace(reply, client_id=9)
            return [kept[1], reply, reply, stranger]  # round 1's reply again, the right one, it again, and nobody's
        return [reply]

    quiet, noisy = Federation(tmp_path / "a"), Federation(tmp_path / "b", disturb=disturb)
    for _ in range(2):
        expected, outcome = quiet.round(), noisy.round()
    assert digests(outcome) == digests(expected)
    assert outcome.state.notes == expected.state.notes
    assert [(f.client_id, f.code) for f in outcome.failures] == [(1, "wrong-round"), (1, "duplicate"), (9, "not-asked")]


def test_an_update_that_is_not_finite_is_excluded_and_the_rest_is_as_without_it(tmp_path):
    def poisoned(task, reply):
        if task.client_id != 1:
            return [reply]
        weights = reply.weights
        broken = weights.encoder.map(lambda name, tensor: tensor * float("nan") if name.endswith("weight") else tensor)
        return [replace(reply, upload=GlobalWeights(broken, weights.predictor))]

    without, with_nan = Federation(tmp_path / "a", disturb=fails((1, 1))), Federation(tmp_path / "b", disturb=poisoned)
    expected, outcome = without.round(), with_nan.round()
    assert digests(outcome) == digests(expected)
    assert outcome.state.notes == expected.state.notes
    assert [(f.client_id, f.code) for f in outcome.failures] == [(1, "rejected")]


def test_nothing_good_leaves_the_global_weights_alone(tmp_path):
    federation = Federation(tmp_path, disturb=lambda task, reply: [replace(reply, num_examples=0)], retries=0)
    before = federation.state.global_weights.digest
    with pytest.raises(RoundError, match="0 clients delivered"):
        federation.round()
    assert federation.state.global_weights.digest == before


def test_aggregation_that_fails_or_overflows_leaves_the_global_weights_alone():
    server = make_server(2, Replace())
    state = ServerState(3, GlobalWeights(of(1.0), of(2.0)))
    before = state.global_weights.encoder.copy()
    huge = [result(0, (3e38,), (0.0,)), result(1, (3e38,), (0.0,))]

    class Overflows(WeightedAverage):
        def combine(self, results, previous):
            return super().combine(results, previous).map(lambda _, tensor: tensor * 10)

    class Raises(WeightedAverage):
        def combine(self, results, previous):
            raise ValueError("at the second tensor")

    with pytest.raises(
        RoundError, match=r"round 4: the aggregate of conv1\.weight is NaN or infinite; .* after round 3"
    ):
        accept(replace(server, aggregate=Overflows()), state, huge)
    with pytest.raises(ValueError, match="second tensor"):
        accept(replace(server, aggregate=Raises()), state, huge)
    assert state.global_weights.encoder.digest() == before.digest()


def test_every_order_of_five_replies_gives_the_same_bits():
    stream = torch.Generator().manual_seed(0)
    server = make_server(5, FedEMA())
    start = ServerState(0, GlobalWeights(of(0.0, 0.0, 0.0), of(0.0)))
    tasks = {k: make_task(server, start, k) for k in range(5)}
    replies = [
        result(k, torch.randn(3, generator=stream).tolist(), torch.randn(1, generator=stream).tolist(), 7 + k)
        for k in range(5)
    ]
    seen = set()
    for order in itertools.permutations(replies):
        engine = type("Any", (), {"run_tasks": lambda self, tasks, order=order: order})()
        after = accept(server, start, gather(server, engine, start, tasks)[0])
        seen.add((after.global_weights.digest, str(after.notes)))
    assert len(seen) == 1


def test_a_client_that_is_away_for_some_rounds_starts_from_the_global_weights(tmp_path):
    """Away in rounds 3 to 5: rule `selective`, on every engine."""
    away = Federation(tmp_path, disturb=fails(*[(r, 1) for r in (3, 4, 5)]))
    outcomes = [away.round() for _ in range(6)]
    assert outcomes[1].results[1].scalars["ema"] == 1.0
    assert outcomes[5].results[1].client_id == 1
    assert outcomes[5].results[1].scalars["ema"] == 0.0
    assert outcomes[5].state.notes[1] == outcomes[0].state.notes[1], "lambda_k is set once"


def test_no_learning_leaves_lambda_unset_and_mu_in_range(tmp_path):
    federation = Federation(tmp_path)
    federation.client.training = LocalTraining(epochs=1, batch_size=8, lr=0.0)
    outcomes = [federation.round() for _ in range(3)]
    scales = [note.get("scale") for note in outcomes[-1].state.notes.values()]
    assert all(scale is None or 0 < scale < float("inf") for scale in scales)
    for outcome in outcomes:
        for one in outcome.results:
            assert 0 <= one.scalars.get("mu", 0.0) <= 1


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9])
def test_clients_of_any_size_train(tmp_path, count):
    client = make_client(make_method(), Replace(), clients=1, images=make_images(16).pixels[:count])
    reply = handle(
        client,
        ClientStore(tmp_path),
        TrainTask(0, 1, accepted_round=None, global_weights=client.initial_global_weights()),
    )
    assert reply.num_examples == count
    assert reply.scalars["images"] == min(count, 8)
