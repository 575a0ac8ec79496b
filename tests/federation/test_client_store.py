import pytest
import torch
from small import of

from fedssl.errors import FedsslError
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import ClientState, ClientWeights
from fedssl.weights import Weights


def make_state(value, last_round):
    weights = ClientWeights(of(value, 1.0), of(value + 1), Weights())
    return ClientState(weights, last_round, {"queue": torch.full((2, 3), value)}, {"scale": 1 / 3, "d": 1e-300})


def test_round_trip_is_exact(tmp_path):
    store, state = ClientStore(tmp_path), make_state(0.1, 4)
    store.save(7, state, keep=None)
    back = store.load(7, 4)
    assert back.weights.online.digest() == state.weights.online.digest()
    assert list(back.weights.online.buffers) == ["bn.running_mean"]
    assert back.weights.predictor.digest() == state.weights.predictor.digest()
    assert back.weights.target == Weights()
    assert torch.equal(back.memory["queue"], state.memory["queue"])
    assert (back.scalars, back.last_round) == (state.scalars, 4)


def test_keeps_the_accepted_generation_beside_the_new_one_and_prunes_the_rest(tmp_path):
    store = ClientStore(tmp_path)
    store.save(0, make_state(1.0, 1), keep=None)
    store.save(0, make_state(2.0, 2), keep=1)
    assert store.load(0, 1).memory["queue"][0, 0] == 1.0, "round 2 may yet be rejected"
    store.save(0, make_state(3.0, 3), keep=2)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]


def test_a_missing_state_names_client_and_round(tmp_path):
    with pytest.raises(FedsslError, match="client 3: its state after round 9 is missing"):
        ClientStore(tmp_path).load(3, 9)


def test_a_failed_save_leaves_the_old_state_and_no_rubbish(tmp_path, monkeypatch):
    store = ClientStore(tmp_path)
    store.save(0, make_state(1.0, 1), keep=None)

    def fails(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("fedssl.federation.client_store.save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        store.save(0, make_state(2.0, 2), keep=1)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["round-000001.safetensors"]
