"""Counts that sites send of the global encoder: what may arrive, what is refused, and that only sums may be enough."""

from dataclasses import replace

import pytest
import torch

from fedssl.core.weights import Weights
from fedssl.federation.client import attempt
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.messages import EVALUATE, ClientError, Failure, GlobalWeights, TrainResult
from fedssl.federation.model_communication import FedEMA
from fedssl.federation.rounds import ServerState
from fedssl.federation.site_evaluation import Counts, SiteEvaluation
from tests.helpers.small import make_client, make_method

SCALE = 1 << 20


def examined(client_id, encoder):
    """Counts that say which client, and which encoder it was shown."""
    if client_id == 2:
        raise ClientError("refused", "no labels here")
    first = next(encoder.parameters()).flatten()[0]
    return Counts(SCALE, {"knn": client_id, "linear": int(first * 1000) % 1000}, client_id)


@pytest.fixture
def client():
    return make_client(make_method(), FedEMA(), examine=examined)


@pytest.fixture
def asked(client, tmp_path):
    """Who asks, with every reply changed by the test's function."""

    class Tampered(InProcessEngine):
        def run_tasks(self, tasks):
            self.seen.append([task.client_id for task in tasks])
            yield from (self.change(reply) for reply in super().run_tasks(tasks))

    engine = Tampered(client, ClientStore(tmp_path))
    engine.seen, engine.change = [], lambda reply: reply
    return SiteEvaluation(engine=engine, num_clients=4)


def test_every_site_is_shown_the_global_encoder_and_one_that_refused_is_not_asked_again(client, asked):
    state = ServerState(3, client.initial_global_weights())
    trained = state.global_weights.encoder.map(lambda name, tensor: torch.full_like(tensor, 0.5))
    found = asked.measure(replace(state, global_weights=GlobalWeights(trained, Weights())))
    assert found.counts == [Counts(SCALE, {"knn": k, "linear": 500}, k) for k in (0, 1, 3)]
    assert [(one.client_id, one.code, one.round_number) for one in found.failures] == [(2, "refused", 4)]
    assert found.bytes_down == 4 * (trained.num_bytes() + len(EVALUATE)), "the predictor is not needed"
    asked.measure(state, away={1})
    assert asked.engine.seen == [[0, 1, 2, 3], [0, 3]]


def test_looking_leaves_what_is_trained_alone(client, asked):
    before = Weights.of(client.method.online_encoder).digest()
    random = torch.get_rng_state()
    asked.measure(ServerState(0, client.initial_global_weights()))
    assert Weights.of(client.method.online_encoder).digest() == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"knn": SCALE + 1, "linear": 1}, f"knn is {SCALE + 1} of {SCALE} images"),
        ({"knn": -1, "linear": 1}, "knn is -1 of"),
        ({"knn": 1.0, "linear": 1}, "knn is 1.0 of"),
        ({"knn": True, "linear": 1}, "knn is True"),
        ({"knn": float("nan"), "linear": 1}, "knn is nan"),
        ({"knn": 1}, "linear is missing"),
        ({"knn": 1, "linear": 1, "loss": 0.5}, "loss is not asked for"),
        ("text", "no table"),
    ],
)
def test_counts_that_cannot_be_are_their_senders_failure_alone(client, asked, told, why):
    asked.engine.change = lambda reply: replace(reply, scalars=told) if reply.client_id == 1 else reply
    found = asked.measure(ServerState(0, client.initial_global_weights()))
    assert [one.client for one in found.counts] == [0, 3]
    (failure,) = [one for one in found.failures if one.client_id == 1]
    assert failure.code == "rejected"
    assert why in failure.detail


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: replace(reply, num_examples=0),
        lambda reply: replace(reply, num_examples=10**10),
        lambda reply: replace(reply, upload=GlobalWeights(Weights({"x": torch.ones(1)}), Weights())),
        lambda reply: replace(reply, payload={"x": torch.ones(1)}),
        lambda reply: replace(reply, profile={"steps": 1.0}),
        lambda reply: replace(reply, round_number=7),
        lambda reply: Failure(reply.client_id, 1, "exception"),
    ],
)
def test_a_reply_that_is_no_counts_gives_none(client, asked, change):
    asked.engine.change = lambda reply: change(reply) if isinstance(reply, TrainResult) else reply
    found = asked.measure(ServerState(0, client.initial_global_weights()))
    assert found.counts == []
    assert len(found.failures) == 4


def test_a_client_that_takes_no_part_refuses_and_is_not_disturbed(asked, tmp_path):
    silent = make_client(make_method(), FedEMA())
    task = asked._task(0, 1, silent.initial_global_weights())
    failure = attempt(silent, ClientStore(tmp_path), task)
    assert failure.code == "refused"
    assert "takes no part" in failure.detail
