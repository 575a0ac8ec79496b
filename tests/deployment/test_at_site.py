"""A client's side of a deployment: what a server may decide there, and what it may not."""

import json

import pytest
from federation import SETTINGS, write_images
from small import TINY

from fedssl.deployment.at_site import checked_settings, claim_state, log_of, name_of, open_side
from fedssl.errors import FedsslError
from fedssl.federation.client import attempt
from fedssl.federation.messages import ClientError, TrainTask
from fedssl.presets import load_config


def about(**changes):
    settings = load_config("sites", SETTINGS | {"flower.clients": ["north", "south"]}).as_raw()
    return {"run": "a1b2", "name": "north", "settings": settings} | changes


def node_config(tmp_path, **changes):
    return {"name": "north", "state": str(tmp_path / "state"), "data": str(tmp_path / "images")} | changes


def train(side, client_id=0, round_number=1, accepted=None):
    weights = side.client.initial_global_weights()
    return attempt(side.client, side.store, TrainTask(client_id, round_number, accepted, weights))


def test_a_client_trains_on_its_own_images_and_keeps_its_state_by_run(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    side = open_side(node_config(tmp_path), about())
    result = train(side, client_id=1)
    assert (result.client_id, result.num_examples) == (1, 24)
    assert (tmp_path / "state/runs/a1b2/client-00001/round-000001/manifest.json").exists()
    assert open_side(node_config(tmp_path), about()).client is side.client, "made once a process"
    another = open_side(node_config(tmp_path), about(run="c3d4"))
    assert another.store.folder == tmp_path / "state/runs/c3d4"


def test_a_state_of_other_images_is_refused(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    write_images(tmp_path / "others", 1, 24)
    train(open_side(node_config(tmp_path), about()))
    side = open_side(node_config(tmp_path, data=str(tmp_path / "others")), about())
    failure = train(side, round_number=2, accepted=1)
    assert "trained on other images" in failure.detail


def test_a_task_for_another_client_is_refused(tmp_path):
    with pytest.raises(ClientError, match="a task for 'south' came to 'north'"):
        open_side(node_config(tmp_path), about(name="south"))


def test_swapped_state_folders_are_refused(tmp_path):
    claim_state(tmp_path / "state", "north")
    claim_state(tmp_path / "state", "north")
    with pytest.raises(FedsslError, match="holds the state of 'north', not of 'south'"):
        claim_state(tmp_path / "state", "south")


def test_a_server_names_no_code_and_no_path_here():
    settings = about()["settings"]
    with pytest.raises(FedsslError, match=r"network\.name of the server: it names code of package 'os' \(os:system\)"):
        checked_settings(settings | {"network": {"name": "os:system"}})
    with pytest.raises(FedsslError, match=r"data\.name: 'folder' would have the server choose"):
        checked_settings(settings | {"data": {"name": "folder", "path": "/etc"}})
    with pytest.raises(FedsslError, match="rounds"):
        checked_settings(settings | {"rounds": -1})
    own = {**settings, "network": settings["network"] | {"name": "fedssl.networks.backbones:convnet"}}
    with pytest.raises(FedsslError, match="if you trust it, say --allow-code fedssl"):
        checked_settings(own)
    for allowed in ("fedssl", "fedssl.networks.backbones:convnet"):
        assert checked_settings(own, [allowed]).network.name == own["network"]["name"]


@pytest.mark.parametrize("device", ["", "cpu"])
def test_a_client_trains_a_network_that_it_allows(tmp_path, device):
    write_images(tmp_path / "images", 0, 24)
    settings = about()["settings"]
    network = {key: settings["network"][key] for key in ("head_hidden", "head_out")} | {"name": "own_networks:Small"}
    task = about(settings=settings | {"network": network})
    with pytest.raises(FedsslError, match="say --allow-code own_networks"):
        open_side(node_config(tmp_path, device=device), task)
    side = open_side(node_config(tmp_path, device=device, **{"allow-code": "other,own_networks"}), task)
    assert train(side).num_examples == 24


def test_a_file_that_the_server_started_from_is_not_looked_for_here(tmp_path):
    """The weights come with the first task; the path is the server's, and may exist here by accident or intent."""
    theirs = load_config("sites", {"init.encoder": str(tmp_path / "secret.safetensors")}).as_raw()
    assert theirs["init"]["encoder"]
    assert checked_settings(theirs).init.encoder == ""


@pytest.mark.parametrize("run", ["../x", "a/b", "", "x" * 65, "a.b"])
def test_the_id_of_a_run_is_no_path(tmp_path, run):
    with pytest.raises(FedsslError, match="no name of a folder"):
        open_side(node_config(tmp_path), about(run=run))


def test_data_must_fit_the_run(tmp_path):
    with pytest.raises(FedsslError, match="say where yours are"):
        open_side(node_config(tmp_path, data=""), about())
    shared = load_config("smoke", TINY | {"flower.clients": ["north", "b", "c", "d"]}).as_raw()
    with pytest.raises(FedsslError, match="not on your own images"):
        open_side(node_config(tmp_path), about(settings=shared))
    side = open_side(node_config(tmp_path, data="", device="cpu"), about(settings=shared))
    assert train(side, client_id=2).num_examples == 20
    write_images(tmp_path / "one", 0, 1)
    with pytest.raises(FedsslError, match="1 images can be used: at least 2"):
        open_side(node_config(tmp_path, data=str(tmp_path / "one")), about())


def test_name_and_log_come_from_the_node(tmp_path):
    assert name_of({"name": "north"}) == "north"
    assert log_of(node_config(tmp_path)) == tmp_path / "state/failures.jsonl"
    assert json.loads(json.dumps(about()))["name"] == "north"
