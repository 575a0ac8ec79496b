"""Networks without BatchNorm with every update rule and aggregator, in whole runs, evaluation and export."""

import math

import pytest
import torch

from fedssl.encoders.evaluate import Request, evaluate
from fedssl.encoders.export import export_encoder
from fedssl.encoders.trained import load_encoder
from fedssl.evaluation.features import compute_features, with_reestimated_batchnorm
from fedssl.evaluation.protocols import PROTOCOLS
from fedssl.experiment.experiment import load
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.methods import METHODS
from fedssl.networks.backbones import BACKBONES, feature_size
from tests.helpers.small import HEADS, TINY, make_client, make_images, run

NETWORKS = {"vit-tiny": {"width": 8, "depth": 1}, "convnext-atto": {"width": 4}}


def client_with(network, rule, **options):
    torch.manual_seed(0)
    backbone = BACKBONES[network](3, **NETWORKS[network])
    method = METHODS["byol"](backbone, feature_size(backbone, 3, (16, 16)), HEADS)
    return make_client(method, rule, **options)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule", UPDATE_RULES)
def test_every_rule(tmp_path, network, rule):
    made = UPDATE_RULES[rule](**({"norm": "mean-matrix"} if rule in ("fedu", "fedema") else {}))
    client = client_with(network, made)
    made.check(client.initial_global_weights().encoder)
    outcomes, _ = run(tmp_path, made, client=client)
    assert all(math.isfinite(result.scalars["loss"]) for outcome in outcomes for result in outcome.results)
    if rule == "fedema":
        assert outcomes[1].results[0].scalars["mu"] == pytest.approx(made.tau)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_aggregator(tmp_path, network, aggregator):
    rule = UPDATE_RULES["replace"]()
    client = client_with(network, rule, clients=5)  # as many as Krum needs
    outcomes, _ = run(tmp_path, rule, client=client, clients=5, aggregate=AGGREGATORS[aggregator](), rounds=1)
    encoder = outcomes[0].state.global_weights.encoder
    assert all(bool(tensor.isfinite().all()) for tensor in encoder.tensors().values())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("batchnorm", ["average", "local-layers"])
def test_a_whole_run_with_evaluation_and_exports(tmp_path, network, batchnorm):
    settings = {f"network.{name}": value for name, value in NETWORKS[network].items()}
    settings |= {"network.name": network, "aggregation.batchnorm": batchnorm, "aggregation.wire_dtype": "int8"}
    settings |= {"data.labelled_fraction": 0.25}  # for the semi-supervised protocols
    load("smoke", TINY | settings | {"rounds": 1, "update_rule.norm": "mean-matrix"}).run(tmp_path / "run")
    programs = ["torch-export", "onnx"] if batchnorm == "average" else []
    exported = export_encoder(tmp_path / "run", tmp_path / "out", ["safetensors", "hub", "timm", *programs])
    assert list(exported.differences) == programs
    images = torch.rand(3, 3, 16, 16)
    encoder = load_encoder(tmp_path / "run")
    assert torch.equal(encoder(images), load_encoder(tmp_path / "out")(images))
    assert "BatchNorm statistics estimated" not in (tmp_path / "out/README.md").read_text()
    if batchnorm == "average":
        request = Request(protocols=tuple(PROTOCOLS), epochs={"linear": 1, "semi": 1, "supervised": 1})
        found = evaluate(tmp_path / "run", request)
        assert {result.protocol for result in found} == set(PROTOCOLS)


@pytest.mark.parametrize("network", NETWORKS)
def test_statistics_that_do_not_exist_are_not_estimated(network):
    backbone, pixels = BACKBONES[network](3, **NETWORKS[network]), make_images(10).pixels
    said = []
    again = with_reestimated_batchnorm(backbone, pixels, progress=lambda *about: said.append(about))
    assert not said, "no image passes through the network"
    assert torch.equal(compute_features(again, pixels), compute_features(backbone, pixels))
