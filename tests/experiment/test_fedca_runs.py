"""Whole runs of FedCA: public images, the base encoder, shared projections; engines, stops, warnings."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import FedsslError
from fedssl.data.partition import Partition
from fedssl.experiment.build.data import build_dataset, build_partition, choose_public_images
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config, typed_config
from fedssl.experiment.experiment import load
from fedssl.experiment.records.run_record import RunRecord
from fedssl.federation.model_communication import Replace
from fedssl.federation.rounds import ServerState, gather, make_task
from fedssl.reports.prose import story, warnings
from tests.faults.test_damage import Stops
from tests.helpers.faults import everything, experiment
from tests.helpers.pictures import write_folder
from tests.helpers.small import make_client, make_method, make_server, run

NAME = "BYOL + FedEMA"
SETTINGS = {
    "method.name": "fedca",
    "method.public_images": 24,
    "method.align_epochs": 2,
    "method.shared_projections": 6,
    "method.dictionary_size": 12,
    "update_rule.name": "replace",
    "rounds": 3,
    "evaluation.every": 0,
    "data.test_images": 10,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, view = tmp_path_factory.mktemp("fedca") / "one", Stops()
    experiment(NAME, engine="in-process", **SETTINGS).run(folder, view)
    return folder, view.lines


def test_engines_agree_and_a_stopped_run_ends_with_the_same_bits(finished, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, engine="processes", workers=2, **SETTINGS).run(tmp_path / "two", Stops(1))
    shutil.rmtree(tmp_path / "two" / "base-encoder")  # what the rounds need of it is in the checkpoint
    experiment(NAME, engine="processes", workers=2, **SETTINGS).run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(finished[0])


def killed_early(folder, again):
    """What a run leaves that was killed before its first checkpoint."""
    again.mkdir()
    shutil.copytree(folder / "base-encoder", again / "base-encoder")
    for file in ("config.toml", "environment.json", "partition.json"):
        shutil.copy(folder / file, again / file)
    return again


def test_a_base_encoder_that_is_whole_is_not_trained_again(finished, tmp_path, monkeypatch):
    folder, again = finished[0], killed_early(finished[0], tmp_path / "again")
    with monkeypatch.context() as patched:
        patched.setattr("fedssl.experiment.base_encoder.train_locally", None)  # calling it would raise
        experiment(NAME, engine="in-process", **SETTINGS).run(again)
    assert everything(again) == everything(folder)


def test_a_damaged_base_encoder_is_made_again(finished, tmp_path):
    folder, again = finished[0], killed_early(finished[0], tmp_path / "again")
    file = again / "base-encoder" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    experiment(NAME, engine="in-process", **SETTINGS).run(again)
    assert everything(again) == everything(folder)
    assert file.read_bytes() == (folder / "base-encoder" / "tensors.safetensors").read_bytes()


def test_public_images_are_at_no_client_and_recorded(finished):
    folder, said = finished
    partition = Partition.load(folder / "partition.json")
    held = np.concatenate([*partition.clients, partition.labelled])
    assert len(partition.public) == 24
    assert not np.isin(partition.public, held).any()
    data = json.loads((folder / "summary.json").read_text())["data"]
    assert (data["public"], data["public_source"]) == (24, "of synthetic")
    assert len(data["public_fingerprint"]) == 64
    assert any("24 public images (of synthetic) are at no client" in text for text in said)


def test_that_features_leave_is_said_before_in_the_report_and_in_the_list(finished):
    folder, said = finished
    assert [text for text in said if text.startswith("warning: FEATURES LEAVE THE CLIENTS: with fedca")]
    record = RunRecord.read(folder)
    assert any(text.startswith("FEATURES LEFT THE CLIENTS") for text in warnings(record))
    assert "network weights and normalised projections" in story(record, 10)[0]
    listed = CliRunner().invoke(app, ["methods"]).output
    assert "FEATURES LEAVE THE CLIENT: normalised projections" in listed
    alone = load_config("smoke+standalone", {"method.name": "fedca"})
    assert not build(alone).warnings, "where nothing is shared no features leave"


def test_bytes_of_what_is_shared_are_counted(finished):
    rounds = [json.loads(line) for line in (finished[0] / "rounds.jsonl").read_text().splitlines()][1:]
    weights = rounds[0]["clients"][0]["bytes_up"] - 6 * 8 * 4
    assert rounds[0]["clients"][0]["bytes_down"] == weights + 24 * 8 * 4, "the base's view of the public images"
    assert rounds[1]["clients"][0]["bytes_down"] == weights + 24 * 8 * 4 + 12 * 8 * 4, "and the dictionary"


def test_no_label_is_looked_at():
    """Other labels, the same public images."""
    config = load_config("smoke+fedca", {"method.public_images": 20})
    dataset = build_dataset(config.data)
    other = replace(dataset, train=replace(dataset.train, labels=dataset.train.labels.flip(0)))
    chosen = [choose_public_images(config, one, build_partition(config, one))[0] for one in (dataset, other)]
    assert torch.equal(*chosen)


def test_public_images_of_another_dataset():
    other = {"data.image_size": 32, "method.public_images": 8, "method.public_data": "synthetic"}
    parts = build(load_config("smoke+fedca", other))
    assert len(parts.client.method.public) == 8
    assert len(parts.partition.public) == 0
    assert parts.public_source.startswith("of synthetic, made from seed")
    with pytest.raises(FedsslError, match=r"method\.public_data: images of synthetic are 3 x \(32, 32\)"):
        build(load_config("smoke+fedca", {**other, "data.image_size": 16}))
    with pytest.raises(FedsslError, match=r"method\.public_data: there is no 'cifar11'"):
        load_config("smoke+fedca", {**other, "method.public_data": "cifar11"})


def test_public_images_of_a_dataset_that_a_person_typed(tmp_path, monkeypatch):
    code = "from fedssl.data.standard.cached import synthetic\ndef mine(progress): return synthetic()\n"
    (tmp_path / "public_set.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"method.public_images": 8, "method.public_data": "public_set:mine"}
    parts = build(typed_config("smoke+fedca", own))
    assert parts.public_source.startswith("of public_set:mine")
    with pytest.raises(FedsslError, match=r"method\.public_data: it names code of package 'public_set'.*--allow-code"):
        load_config("smoke+fedca", own)


def test_what_belongs_to_clients_is_never_public(tmp_path):
    write_folder(tmp_path / "sites", clients=("north", "south"))
    settings = {"data.path": str(tmp_path / "sites"), "data.layout": "silos", "method.public_images": 2}
    with pytest.raises(FedsslError, match=r"method\.public_data: these images belong to clients"):
        build(load_config("folder+fedca", settings))


def test_more_public_images_than_there_are_is_refused():
    with pytest.raises(
        FedsslError, match=r"method\.public_images: 1199 of 1200 images would leave the clients nothing"
    ):
        build(load("smoke+fedca", {"method.public_images": 1199}).config)


def test_the_gate_keeps_out_projections_that_are_not_normalised(tmp_path):
    method = make_method("fedca", shared_projections=4)
    client = make_client(method, Replace())
    server = make_server(4, Replace(), None, method.pool, payload_problem=method.payload_problem, retries=0)
    state = ServerState(0, client.initial_global_weights())
    tasks = {k: make_task(server, state, k) for k in range(4)}

    class Shouts:
        def run_tasks(self, asked):
            for task in asked:
                _, result = client.train(None, task)
                loud = {name: 3 * tensor for name, tensor in result.payload.items()}
                yield replace(result, payload=loud) if task.client_id == 2 else result

    results, failures = gather(server, Shouts(), state, tasks)
    assert [result.client_id for result in results] == [0, 1, 3]
    assert [(one.client_id, one.code, one.detail) for one in failures] == [
        (2, "rejected", "payload projections: row 0 is not normalised")
    ]


def test_a_client_that_shares_nothing_sends_no_projections(tmp_path):
    outcomes, _ = run(tmp_path, "none", "fedca", rounds=1)
    assert [result.num_bytes() for result in outcomes[0].results] == [0] * 4
