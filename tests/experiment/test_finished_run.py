import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.weights import Weights
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_folder import RunFolder
from tests.helpers.small import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    load("smoke", TINY).run(path)
    return path


def test_reads_back_what_the_run_wrote(folder):
    run = FinishedRun.open(folder)
    assert run.config.run.rounds == 2
    assert run.summary["rounds"] == 2
    assert len(run.rounds) == 3
    assert run.environment["torch_threads"] == 1
    assert sorted(i for client in run.partition.clients for i in client) == list(range(80))
    assert len(run.dataset.test) == 40


def test_global_encoder_is_the_one_whose_checksum_was_recorded(folder):
    run = FinishedRun.open(folder)
    assert Weights.of(run.global_encoder()).digest() == run.summary["weights_sha256"]
    assert Weights.of(run.random_encoder()).digest() != run.summary["weights_sha256"]


def test_client_encoders_average_to_the_global_one(folder):
    run = FinishedRun.open(folder)
    encoders = {client: run.client_encoder(client) for client in run.client_rounds()}
    assert list(encoders) == [0, 1, 2, 3]
    mean = torch.stack([e.backbone.conv1.weight for e in encoders.values()]).mean(dim=0)
    torch.testing.assert_close(mean, run.global_encoder().backbone.conv1.weight)


def test_what_is_wrong_with_a_folder_is_said(folder, tmp_path):
    with pytest.raises(FedsslError, match=r"not a run folder \(config\.toml is missing\)"):
        FinishedRun.open(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    tensors = load_file(copy / "encoder.safetensors")
    save_file({name: t for name, t in tensors.items() if "conv1" not in name}, copy / "encoder.safetensors")
    with pytest.raises(DamagedError, match=r"encoder\.safetensors: damaged, not the weights that summary\.json names"):
        FinishedRun.open(copy).global_encoder()
    RunFolder(copy).write_summary({"status": "finished"})  # of a version that named no weights
    with pytest.raises(FedsslError, match=r"another network than config\.toml says: .*conv1"):
        FinishedRun.open(copy).global_encoder()
    (copy / "encoder.safetensors").write_bytes(b"rubbish")
    with pytest.raises(FedsslError, match="not readable as safetensors"):
        FinishedRun.open(copy).global_encoder()
    (copy / "encoder.safetensors").unlink()
    with pytest.raises(FedsslError, match="the run has no encoder"):
        FinishedRun.open(copy).global_encoder()
    (copy / "summary.json").write_text("{")
    with pytest.raises(FedsslError, match=r"summary\.json: cannot be read"):
        _ = FinishedRun.open(copy).summary
