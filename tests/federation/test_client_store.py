import pytest
import torch

from fedssl.core.errors import DamagedError, FedsslError, StorageError
from fedssl.core.weights import Weights
from fedssl.federation.client_store import ClientStore, Sent
from fedssl.federation.messages import ClientState, ClientWeights, GlobalWeights, TrainResult, TrainTask
from tests.helpers.small import of


def make_task(client_id, round_number, accepted=None, value=0.5, **note):
    return TrainTask(
        client_id, round_number, accepted_round=accepted, global_weights=GlobalWeights(of(value), of(1.0)), note=note
    )


def make_state(value, last_round):
    weights = ClientWeights(of(value, 1.0), of(value + 1), Weights())
    return ClientState(weights, last_round, {"queue": torch.full((2, 3), value)}, {"scale": 1 / 3, "d": 1e-300})


def save(store, client_id, round_number, accepted=None, value=1.0, settings="lr 0.1"):
    task, state = make_task(client_id, round_number, accepted), make_state(value, round_number)
    upload = GlobalWeights(state.weights.online, state.weights.predictor)
    sent = TrainResult(
        client_id,
        round_number,
        upload,
        num_examples=40,
        scalars={"loss": 0.1},
        payload={"features": torch.tensor([3.0])},
    )
    return store.save(task, settings, state, sent)


def generations(folder):
    return sorted(path.name for path in folder.glob("client-*/*"))


def test_round_trip_is_exact(tmp_path):
    store, state = ClientStore(tmp_path), make_state(0.1, 4)
    save(store, 7, 4, value=0.1)
    back = store.load(7, 4)
    assert back.weights.online.digest() == state.weights.online.digest()
    assert list(back.weights.online.buffers) == ["bn.running_mean"]
    assert back.weights.predictor.digest() == state.weights.predictor.digest()
    assert back.weights.target == Weights()
    assert torch.equal(back.memory["queue"], state.memory["queue"])
    assert (back.scalars, back.last_round) == (state.scalars, 4)


def test_a_result_is_made_again_from_the_disk(tmp_path):
    store = ClientStore(tmp_path)
    sealed = save(store, 7, 4, value=0.1)
    again = store.result(sealed, Sent("online"))
    assert (again.client_id, again.round_number, again.num_examples, again.scalars) == (7, 4, 40, {"loss": 0.1})
    assert again.weights.encoder.digest() == of(0.1, 1.0).digest()
    assert again.weights.predictor.digest() == of(1.1).digest()
    assert again.payload["features"].item() == 3.0
    assert again.num_bytes() == again.weights.num_bytes() + 4
    private = store.result(sealed, Sent("online", frozenset({"bn.running_mean"})))
    assert not private.weights.encoder.buffers, "what is private stays in the file"
    assert store.result(sealed, Sent("")).weights == GlobalWeights(Weights(), Weights())


def test_a_task_that_was_trained_before_is_found_and_no_other(tmp_path):
    store = ClientStore(tmp_path)
    save(store, 7, 4, accepted=3)
    assert store.find(make_task(7, 4, 3), "lr 0.1") is not None
    assert store.find(make_task(7, 4, 3), "lr 0.2") is None, "the learning rate has changed"
    assert store.find(make_task(7, 4, 2), "lr 0.1") is None, "it started from another state"
    assert store.find(make_task(7, 4, 3, value=0.6), "lr 0.1") is None, "the global weights were others"
    assert store.find(make_task(7, 4, 3, scale=1.0), "lr 0.1") is None, "lambda_k was another"
    assert store.find(make_task(7, 5, 3), "lr 0.1") is None
    (store.path(7, 4) / "tensors.safetensors").write_bytes(b"rubbish")
    assert store.find(make_task(7, 4, 3), "lr 0.1") is None, "it is trained again"


def test_keeps_what_a_checkpoint_may_ask_for_and_prunes_the_rest(tmp_path):
    store = ClientStore(tmp_path, keep=2)
    save(store, 0, 1, None, 1.0)
    save(store, 0, 2, 1, 2.0)
    save(store, 0, 3, 2, 3.0)
    assert generations(tmp_path) == ["round-000001", "round-000002", "round-000003"], "a fall back may need round 1"
    save(store, 0, 4, 2, 4.0)  # round 3 was not accepted
    assert generations(tmp_path) == ["round-000001", "round-000002", "round-000004"]
    save(store, 0, 5, 4, 5.0)
    assert generations(tmp_path) == ["round-000002", "round-000004", "round-000005"]
    assert store.load(0, 4).memory["queue"][0, 0] == 4.0


def test_a_missing_state_names_client_and_round(tmp_path):
    with pytest.raises(DamagedError, match="client 3: its state after round 9 is missing"):
        ClientStore(tmp_path).load(3, 9)


def test_swapped_folders_are_refused(tmp_path):
    store = ClientStore(tmp_path)
    save(store, 1, 5)
    save(store, 2, 5)
    for old, new in (("client-00001", "x"), ("client-00002", "client-00001"), ("x", "client-00002")):
        (tmp_path / old).rename(tmp_path / new)
    with pytest.raises(
        FedsslError, match="holds the state of client 2, not of client 1: put the folders back"
    ) as error:
        store.load(1, 5)
    assert not isinstance(error.value, DamagedError), "nothing is damaged: an older checkpoint must not be used instead"


def test_other_images_than_before_are_refused(tmp_path):
    save(ClientStore(tmp_path, data_of=lambda client_id: f"images {client_id}"), 1, 5)
    assert ClientStore(tmp_path, data_of=lambda client_id: f"images {client_id}").load(1, 5).last_round == 5
    with pytest.raises(FedsslError, match="client 1 was trained on other images than it has now"):
        ClientStore(tmp_path, data_of=lambda client_id: "others").load(1, 5)


def test_a_failed_save_leaves_the_old_state_and_no_rubbish(tmp_path, monkeypatch):
    store = ClientStore(tmp_path)
    save(store, 0, 1)

    def fails(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedssl.core.sealed.write_tensors", fails)
    with pytest.raises(StorageError, match=r"round-000002: .* No space left on device \(48 B needed, .* free\)"):
        save(store, 0, 2, 1)
    assert generations(tmp_path) == ["round-000001"]
    assert store.load(0, 1).last_round == 1
