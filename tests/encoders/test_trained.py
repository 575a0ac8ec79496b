"""Which encoder of a run is meant: global or a client's, online or target."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.data.own.decoding import Decoding
from fedssl.encoders.export import export_encoder
from fedssl.encoders.trained import open_encoder
from fedssl.evaluation.features import with_reestimated_batchnorm
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import read_summary
from fedssl.networks.weight_files import read_weight_file
from tests.helpers.pictures import write_folder
from tests.helpers.small import TINY


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    made = {}

    def run(name="smoke", **settings):
        key = name + str(settings)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("runs") / "run"
            load(name, {**TINY, "rounds": 1, **settings}).run(made[key])
        return made[key]

    return run


def digest(encoder):
    return Weights.of(encoder).digest()


def test_the_global_encoder_and_each_clients_own(make):
    path = make()
    run = FinishedRun.open(path)
    assert digest(fedssl.load_encoder(path).backbone) == digest(run.global_encoder().backbone)
    for client in range(4):
        assert digest(fedssl.load_encoder(path, client).backbone) == digest(run.client_encoder(client).backbone)
    assert len({digest(fedssl.load_encoder(path, client).backbone) for client in (None, 0, 1, 2, 3)}) == 5
    assert not fedssl.load_encoder(path, 0).training


def test_the_target_is_the_one_in_the_clients_state(make):
    path = make()
    _, weights = FinishedRun.open(path).client_weights(2)
    target = fedssl.load_encoder(path, 2, "target").backbone
    assert torch.equal(target.conv1.weight, weights.target.parameters["backbone.conv1.weight"])
    assert digest(target) != digest(fedssl.load_encoder(path, 2, "online").backbone)


def test_there_is_no_global_target_unless_targets_were_sent(make):
    with pytest.raises(FedsslError, match="target encoders never leave their clients"):
        fedssl.load_encoder(make(), network="target")
    sent = make(**{"aggregation.upload": "target"})
    assert open_encoder(sent).about["weights"] == "target"
    assert open_encoder(sent, network="target").about["encoder"] == "global"
    with pytest.raises(FedsslError, match="its clients sent their target encoders"):
        fedssl.load_encoder(sent, network="online")


def test_an_encoder_says_how_its_network_began_and_is_read_without_it(make, tmp_path):
    """Files of before the setting existed do not say."""
    path = make(**{"network.name": "resnet10", "network.init": "pytorch"})
    found = open_encoder(path)
    assert found.about["network"] == {
        "name": "resnet10",
        "width": 4,
        "stem_stride": 1,
        "init": "pytorch",
        "stem": "learned",
    }
    file = read_weight_file(path)
    old = {**file.about, "network": {"name": "resnet10", "width": 4}}
    save_file(file.tensors, tmp_path / "old.safetensors", {"fedssl": json.dumps(old)})
    assert digest(fedssl.load_encoder(tmp_path / "old.safetensors")) == digest(found.model)


def test_a_method_without_a_target_has_none_to_give(make):
    with pytest.raises(FedsslError, match="simsiam has no target encoder"):
        fedssl.load_encoder(make(**{"method.name": "simsiam"}), 0, "target")


def test_clients_that_share_nothing_have_no_global_encoder(make):
    path = make("smoke+standalone")
    with pytest.raises(FedsslError, match=r"share nothing.*--client 0"):
        fedssl.load_encoder(path)
    assert digest(fedssl.load_encoder(path, 1).backbone) == digest(FinishedRun.open(path).client_encoder(1).backbone)


def test_statistics_that_clients_kept_are_estimated_for_the_global_encoder(make):
    path = make(**{"aggregation.batchnorm": "local-statistics"})
    run, encoder = FinishedRun.open(path), open_encoder(path)
    wanted = with_reestimated_batchnorm(run.global_encoder().backbone, run.dataset.train.pixels)
    assert digest(encoder.model.backbone) == digest(wanted)
    assert encoder.about["batchnorm"] == "statistics estimated from 80 training images"
    assert "batchnorm" not in open_encoder(path, 0).about


def test_clients_by_name_and_images_as_in_the_run(tmp_path):
    write_folder(tmp_path / "sites", clients=("north", "south"), each=6)
    settings = {"data.path": str(tmp_path / "sites"), "data.layout": "silos", "data.fit": "stretch", "rounds": 1}
    sizes = {"data.image_size": 16, "data.white": 4095, "data.channels": 1, "network.width": 4, "threads": 1}
    load("folder", settings | sizes).run(tmp_path / "run")
    south = open_encoder(tmp_path / "run", "south")
    assert south.about["encoder"] == "client 1"
    assert digest(south.model) == digest(open_encoder(tmp_path / "run", 1).model)
    assert south.decoding == Decoding(16, 1, "stretch", 4095)
    with pytest.raises(FedsslError, match=r"no client 'east'.*; known: north, south"):
        open_encoder(tmp_path / "run", "east")
    with pytest.raises(FedsslError, match="client 7 never trained"):
        open_encoder(tmp_path / "run", "7")
    export_encoder(tmp_path / "run", tmp_path / "out", client="south")
    again = open_encoder(tmp_path / "out")
    assert again.decoding == south.decoding
    assert digest(again.model) == digest(south.model)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "in training only the server saw it" in card
    assert "not those of this client's encoder" in card or "No accuracy is known" in card
    assert "south" not in card


def test_what_is_no_run_has_no_clients(make, tmp_path):
    export_encoder(make(), tmp_path / "out")
    with pytest.raises(FedsslError, match="only a run has encoders of clients"):
        fedssl.load_encoder(tmp_path / "out", 0)
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(FedsslError, match="not an encoder written by fedssl"):
        fedssl.load_encoder(tmp_path / "x.safetensors")


def test_a_run_without_a_finished_round_has_no_trained_encoder(make, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(make(), copy)
    RunFolder(copy).write_summary(read_summary(copy) | {"rounds": 0})
    with pytest.raises(FedsslError, match="finished no round"):
        fedssl.load_encoder(copy)
