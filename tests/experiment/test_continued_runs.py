"""The preset `continue`: from an encoder in a file to one that was trained further, and what it forgot on the way."""

import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.verdict import continued
from tests.helpers.pictures import write_folder
from tests.helpers.small import TINY

SMALL = {**{key: value for key, value in TINY.items() if key.startswith(("network", "local"))}, "data.image_size": 16}
RUN = {**SMALL, "network.name": "convnet", "rounds": 2, "threads": 1, "evaluation.linear_epochs": 2}
SYNTHETIC = {"data.name": "synthetic", "data.train_images": 80, "data.test_images": 40, "evaluation.k": 20}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first"
    load("smoke", {**TINY, "rounds": 1, "evaluation.every": 0}).run(path)
    return path


def test_a_start_must_be_given(tmp_path):
    with pytest.raises(FedsslError, match=r"^init\.encoder: must be given, for this run continues from weights"):
        load("continue", {**RUN, **SYNTHETIC}).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("preset", "rule"), [("continue", "fedema"), ("continue+fedbyol", "replace")])
def test_every_clients_encoder_is_measured_against_the_start(first, tmp_path, preset, rule):
    summary = load(preset, {**RUN, **SYNTHETIC, "init.encoder": str(first)}).run(tmp_path / "run").summary
    run = FinishedRun.open(tmp_path / "run")
    assert run.config.update_rule.name == rule
    assert (run.config.local_training.optimizer, run.config.local_training.warmup_steps) == ("adamw", 10)
    record = RunRecord.read(tmp_path / "run")
    gains = record.client_gains("knn")
    assert list(gains) == [0, 1, 2, 3, 4]
    assert {gain.baseline for gain in gains.values()} == {record.gain("knn").baseline}, "all began with one encoder"
    assert all(set(one) == {"knn"} for one in summary["clients"].values())
    assert summary["continued"] == continued(record).word
    assert load(preset, {**RUN, **SYNTHETIC, "init.encoder": str(first)}).run(tmp_path / "run").summary == summary


def test_a_folder_of_ones_own_with_labels_and_without(first, tmp_path):
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=10, size=16)
    settings = {**RUN, "data.path": str(tmp_path / "photos"), "partition.num_clients": 2, "init.encoder": str(first)}
    labelled = load("continue", {**settings, "data.test_fraction": 0.3}).run(tmp_path / "labelled").summary
    assert list(labelled["clients"]) == ["0", "1"]
    assert labelled["continued"]
    plain = load("continue", {**settings, "data.labels": False}).run(tmp_path / "plain").summary
    assert "continued" not in plain
    assert "clients" not in plain


def test_datasets_and_partitions_are_named_as_anywhere():
    config = load_config("continue", {"data.name": "cifar10", "partition.name": "classes"})
    assert (config.data.name, config.init.required, config.evaluation.clients) == ("cifar10", True, True)
