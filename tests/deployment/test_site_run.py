"""A client's side of a deployment: what a server may decide there, and what it may not."""

import json

import pytest

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.deployment.apps import AtSite
from fedssl.deployment.limits import check_settings
from fedssl.deployment.policy import Policy
from fedssl.deployment.site_folder import claim_state
from fedssl.deployment.site_run import checked_settings, log_of, name_of, open_side
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.resolve import resolve
from fedssl.federation.client import attempt, weights_of
from fedssl.federation.engines.flower.api import Message
from fedssl.federation.engines.flower.client_app import make_client_app
from fedssl.federation.engines.flower.messages import pack_task, pack_tensors, unpack_reply
from fedssl.federation.messages import EVALUATE, ClientError, TrainTask
from tests.helpers.deployed import SETTINGS, write_images
from tests.helpers.flower_grid import context
from tests.helpers.small import TINY


def about(**changes):
    settings = load_config("sites", SETTINGS | {"flower.clients": ["north", "south"]}).as_raw()
    return {"run": "a1b2", "name": "north", "settings": settings} | changes


def node_config(tmp_path, **changes):
    return {"name": "north", "state": str(tmp_path / "state"), "data": str(tmp_path / "images")} | changes


def train(side, client_id=0, round_number=1, accepted=None):
    weights = side.client.initial_global_weights()
    return attempt(
        side.client, side.store, TrainTask(client_id, round_number, accepted_round=accepted, global_weights=weights)
    )


def test_a_client_trains_on_its_own_images_and_keeps_its_state_by_run(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    side = open_side(node_config(tmp_path), about())
    result = train(side, client_id=1)
    assert (result.client_id, result.num_examples) == (1, 24)
    assert (tmp_path / "state/runs/a1b2/client-00001/round-000001/manifest.json").exists()
    assert open_side(node_config(tmp_path), about()).client is side.client, "made once a process"
    another = open_side(node_config(tmp_path), about(run="c3d4"))
    assert another.store.folder == tmp_path / "state/runs/c3d4"


def test_what_a_client_begins_with_is_out_of_memory_and_leaves_no_file(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    client = open_side(node_config(tmp_path), about()).client
    begun, fresh = client.first_weights, weights_of(client.method)
    for part in ("online", "predictor", "target"):
        assert getattr(begun, part).digest() == getattr(fresh, part).digest()
    storages = {tensor.untyped_storage().data_ptr() for tensor in begun.online.tensors().values()}
    assert len(storages) == 1, "views of one map"
    assert [path.name for path in (tmp_path / "state/runs/a1b2").glob("first*")] == []


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
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0, "for its owner alone"
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


PRIVATE = {
    "privacy.name": "client-dp",
    "privacy.clip_norm": 1.0,
    "privacy.noise_multiplier": 0.5,
    "privacy.placement": "local",
    "aggregation.batchnorm": "local-statistics",
    "update_rule.lambda_at": "client",
}
ASKS = Policy(require_privacy="local", min_noise=0.5, max_clip=1.0)


def asked(settings, **changes):
    return about(settings=load_config("sites", SETTINGS | {"flower.clients": ["north"]} | settings | changes).as_raw())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"privacy.name": "none", "privacy.clip_norm": None}, "privacy.name client-dp → none"),
        ({"privacy.noise_multiplier": 0.0}, r"privacy.noise_multiplier 0.5 → 0.0"),
        ({"privacy.clip_norm": 1e30}, r"privacy.clip_norm 1.0 → 1e\+30"),
        ({"privacy.noise_seed": "run"}, "privacy.noise_seed secret → run"),
        ({"privacy.placement": "central"}, "privacy.placement local → central"),
        ({"network.width": 8}, "network.width 4 → 8"),
        ({"update_rule.tau": 0.1}, "update_rule.tau 0.7 → 0.1"),
        ({"method.name": "byol"}, "method.name simclr → byol"),
        ({"aggregation.batchnorm": "local-layers"}, "aggregation.batchnorm"),
        ({"seed": 1}, "seed 0 → 1"),
    ],
)
def test_a_server_cannot_change_a_run_at_a_site(tmp_path, change, told):
    write_images(tmp_path / "images", 0, 24)
    train(open_side(node_config(tmp_path), asked(PRIVATE)))
    settings = {key: value for key, value in (PRIVATE | change).items() if value is not None}
    if settings["privacy.name"] == "none":
        settings = {key: value for key, value in settings.items() if not key.startswith("privacy.")}
    with pytest.raises(FedsslError, match=f"run a1b2: the server changed settings .*{told}"):
        open_side(node_config(tmp_path), asked(settings))
    harmless = {"rounds": 50, "failures.retries": 3, "evaluation.every": 5, "keep_checkpoints": 3}
    assert open_side(node_config(tmp_path), asked(PRIVATE, **harmless)).client.rounds == 50


def test_what_a_run_was_begun_with_is_checked_before_it_is_used(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    open_side(node_config(tmp_path), about())
    manifest = tmp_path / "state/runs/a1b2/settings/manifest.json"
    manifest.write_text(manifest.read_text().replace('"simclr"', '"fedca"'))
    with pytest.raises(DamagedError, match=r"settings/manifest\.json: damaged"):
        open_side(node_config(tmp_path), about())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"privacy.noise_multiplier": 0.4}, r"privacy\.noise_multiplier: 0\.4, this site asks for 0\.5"),
        ({"privacy.clip_norm": 1e30}, r"privacy\.clip_norm: 1e\+30, this site takes 1 at most"),
        ({"privacy.noise_seed": "run"}, r"privacy\.noise_seed: .* asks for 'secret'"),
        ({"privacy.placement": "central"}, r"privacy\.placement: .* this site for 'local'"),
    ],
)
def test_weaker_privacy_than_a_site_asks_for_is_refused_from_the_start(tmp_path, change, told):
    check_settings(resolve(asked(PRIVATE)["settings"]), ASKS)
    node = node_config(tmp_path, **ASKS.as_node())
    with pytest.raises(FedsslError, match=told):
        open_side(node, asked(PRIVATE | change))
    with pytest.raises(FedsslError, match=r"privacy\.name: .* asks for 'client-dp'"):
        open_side(node, about())
    assert not (tmp_path / "state/runs").exists()


def test_features_leave_a_site_only_when_it_says_so():
    config = load_config("sites+fedca", SETTINGS | {"method.public_data": "synthetic"})
    with pytest.raises(FedsslError, match=r"method\.name: with fedca every client also sends .* --allow-features"):
        check_settings(config, Policy())
    check_settings(config, Policy(allow_features=True))


@pytest.mark.parametrize(
    ("setting", "value", "most"),
    [
        ("threads", 100_000, 256),
        ("keep_checkpoints", 10**9, 16),
        ("local_training.epochs", 10**9, 1000),
        ("local_training.batch_size", 10**9, 65536),
        ("network.head_hidden", 10**9, 65536),
        ("network.width", 10**9, 65536),
        ("data.image_size", 10**6, 4096),
        ("augmentation.output_size", 10**6, 4096),
        ("local_training.accumulate", 10**9, 10**6),
    ],
)
def test_settings_that_hurt_a_machine_are_refused_with_the_limit(tmp_path, setting, value, most):
    with pytest.raises(FedsslError, match=f"{setting}: the server asks for {value}, this site allows {most} at most"):
        open_side(node_config(tmp_path), asked({setting: value}))
    assert not (tmp_path / "state/runs").exists()


def test_the_number_of_runs_at_a_site_is_bounded(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    node = node_config(tmp_path, **Policy(max_runs=2).as_node())
    for run in ("a1", "b2", "b2"):
        open_side(node, about(run=run))
    with pytest.raises(FedsslError, match=r"runs: holds 2 runs, this site keeps 2 \(--max-runs\).* the oldest: a1 \("):
        open_side(node, about(run="c3"))
    assert sorted(path.name for path in (tmp_path / "state/runs").iterdir()) == ["a1", "b2"]


def test_the_disk_that_a_site_gives_is_bounded(tmp_path):
    write_images(tmp_path / "images", 0, 24)
    side = open_side(node_config(tmp_path), about())
    train(side)
    room = Policy(max_disk=1.5e-9 * side.client.state_bytes())
    with pytest.raises(FedsslError, match=r"are used and .* are needed, this site allows .* the oldest: a1b2 \("):
        open_side(node_config(tmp_path, **room.as_node()), about())


@pytest.mark.parametrize("run", ["../x", "a/b", "", "x" * 65, "a.b"])
def test_the_id_of_a_run_is_no_path(tmp_path, run):
    with pytest.raises(FedsslError, match="no name of a folder"):
        open_side(node_config(tmp_path), about(run=run))


def test_data_must_fit_the_run(tmp_path):
    with pytest.raises(FedsslError, match="say where yours are"):
        open_side(node_config(tmp_path, data=""), about())
    shared = load_config("smoke", TINY | {"flower.clients": ["north", "b", "c", "d"]}).as_raw()
    with pytest.raises(FedsslError, match="not on your own images"):
        open_side(node_config(tmp_path), about(run="b2", settings=shared))
    side = open_side(node_config(tmp_path, data="", device="cpu"), about(run="b2", settings=shared))
    assert train(side, client_id=2).num_examples == 20
    write_images(tmp_path / "one", 0, 1)
    with pytest.raises(FedsslError, match="1 images can be used: at least 2"):
        open_side(node_config(tmp_path, data=str(tmp_path / "one")), about())


def test_name_and_log_come_from_the_node(tmp_path):
    assert name_of({"name": "north"}) == "north"
    assert log_of(node_config(tmp_path)) == tmp_path / "state/failures.jsonl"
    assert json.loads(json.dumps(about()))["name"] == "north"


def test_a_site_counts_with_its_own_labels_unless_it_will_not(tmp_path):
    """And trains to the same bits with labels in reach as without."""
    settings = SETTINGS | {"flower.clients": ["north", "south"], "evaluation.at_sites": True}
    asked = about(settings=load_config("sites", settings | {"evaluation.linear_epochs": 2}).as_raw())
    write_images(tmp_path / "images/images", 0, 24)
    for name in ("ill", "well"):
        write_images(tmp_path / "eval" / name, len(name), 6)
    places = {"data": str(tmp_path / "images"), "eval-train": str(tmp_path / "eval")}

    def evaluate(side):
        weights = side.client.initial_global_weights()
        return attempt(
            side.client,
            side.store,
            TrainTask(0, 1, accepted_round=None, global_weights=weights, stage=EVALUATE, room=0),
        )

    with_labels = open_side(node_config(tmp_path, **places), asked)
    counts = evaluate(with_labels)
    assert counts.num_examples == 2
    assert set(counts.scalars) == {"knn", "linear"}
    refused = {"no labels": {"data": places["data"]}, "takes no part": places | {"evaluation": "False"}}
    for why, node in refused.items():
        failure = evaluate(open_side(node_config(tmp_path, **node), asked))
        assert (failure.code, why in failure.detail) == ("refused", True), failure
    without = open_side(node_config(tmp_path, data=places["data"], state=str(tmp_path / "other")), about())
    assert train(with_labels).weights.digest == train(without).weights.digest


def test_counts_after_the_last_round_are_no_upload_and_no_round_more(tmp_path):
    """A site that gives a run one round still answers how good the model became, and its record says that it did."""
    settings = SETTINGS | {"flower.clients": ["north", "south"], "rounds": 1, "evaluation.at_sites": True}
    asked = about(settings=load_config("sites", settings | {"evaluation.linear_epochs": 1}).as_raw())
    write_images(tmp_path / "images/a", 0, 12)
    write_images(tmp_path / "images/b", 1, 12)
    app, node = make_client_app(AtSite()), node_config(tmp_path, **{"max-rounds": "1"})

    def answered(task):
        content = pack_task(task, pack_tensors(task.global_weights, {}), asked)
        message = Message(content, dst_node_id=1, message_type="train")
        message.metadata.__dict__["_message_id"] = "1"
        return unpack_reply(app(message, context(node)), tmp_path / "upload", 10**7)

    weights = open_side(node, asked).client.initial_global_weights()
    assert answered(TrainTask(0, 1, accepted_round=None, global_weights=weights)).num_examples == 24
    assert answered(TrainTask(0, 2, accepted_round=None, global_weights=weights, stage=EVALUATE)).num_examples == 4
    assert answered(TrainTask(0, 2, accepted_round=1, global_weights=weights)).code == "refused"
    lines = [json.loads(line) for line in (tmp_path / "state/audit.jsonl").read_text().splitlines()]
    replies = [one for one in lines if one["event"] == "reply"]
    assert [one["spent"]["uploads"] for one in replies] == [1, 1, 1]
    assert [one["evaluation"] for one in replies] == [False, True, False]
    assert [part["name"] for part in replies[1]["left"]] == ["numbers: num_examples, knn, linear"]
