import onnxruntime
import pytest
import torch
from safetensors import safe_open

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.core.settings import settings_of
from fedssl.core.weights import Weights
from fedssl.encoders.export import export_encoder
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.networks.backbones import BACKBONES, convnet, feature_size
from fedssl.networks.whitening import Whitening
from tests.helpers.small import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whitened"
    load("smoke", {**TINY, "network.stem": "whitened"}).run(path)
    return path


@pytest.mark.parametrize(("channels", "kept"), [(3, 24), (1, 8)])
def test_filters_are_directions_at_right_angles_the_largest_deviation_first(channels, kept):
    rows = Whitening(channels).filters.flatten(1).double()
    products = rows @ rows.T
    sizes = products.diagonal().sqrt()
    angles = products / sizes.outer(sizes)
    torch.testing.assert_close(angles, torch.eye(kept, dtype=torch.float64), rtol=0, atol=1e-5)
    assert (sizes.diff() > 0).all(), "a smaller deviation is divided by less"


def test_flat_images_of_the_mean_colour_give_nothing():
    stem = Whitening(3)
    torch.testing.assert_close(stem(stem.mean.expand(2, 3, 8, 8)), torch.zeros(2, 24, 8, 8))


@pytest.mark.parametrize("name", [name for name in BACKBONES if "stem" in settings_of(BACKBONES[name])])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_backbone_takes_it_and_has_no_weight_of_it(name, channels):
    backbone = BACKBONES[name](channels, width=4, stem="whitened")
    assert feature_size(backbone, channels, (32, 32)) == feature_size(BACKBONES[name](3, width=4), 3, (32, 32))
    assert not [key for key in Weights.of(backbone).tensors() if key.startswith("stem")]
    assert backbone.conv1.in_channels == backbone.stem.out_channels


def test_other_channels_are_refused_with_the_remedy():
    with pytest.raises(FedsslError, match=r"network\.stem: .* these have 4: use \"learned\""):
        convnet(4, stem="whitened")


def test_it_is_the_same_after_rounds_and_neither_saved_nor_sent(run):
    finished = FinishedRun.open(run)
    fresh = Whitening(3)
    for encoder in (finished.global_encoder(), *map(finished.client_encoder, finished.client_rounds())):
        assert torch.equal(encoder.backbone.stem.filters, fresh.filters)
    with safe_open(run / "encoder.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "stem" in name]  # noqa: SIM118 - no dict
    sent = {record["bytes_up"] for one in finished.rounds for record in one["clients"]}
    state = finished.client_weights(0)[1]
    assert sent == {state.online.num_bytes() + state.predictor.num_bytes()}


def test_encoder_and_exports_rebuild_it(run, tmp_path):
    finished, images = FinishedRun.open(run), torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = finished.global_encoder().backbone.eval()(images)
        torch.testing.assert_close(fedssl.load_encoder(run)(images), wanted)
        export_encoder(run, tmp_path / "out", ["safetensors", "onnx", "torch-export"])
        torch.testing.assert_close(fedssl.load_encoder(tmp_path / "out")(images), wanted)
    (found,) = onnxruntime.InferenceSession(tmp_path / "out" / "encoder.onnx").run(None, {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=1e-4)


def test_libraries_without_such_a_stem_are_refused(tmp_path):
    run = tmp_path / "run"
    small = {**TINY, "rounds": 1, "network.name": "resnet10", "network.width": 4, "network.stem": "whitened"}
    load("smoke", small).run(run)
    with pytest.raises(FedsslError, match="its ResNets have no whitened stem"):
        export_encoder(run, tmp_path / "out", ["timm"])
