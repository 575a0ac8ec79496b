"""Whole runs with `local_training.freeze`: what nobody trains keeps its bits, whatever travels and is averaged."""

import pytest
import torch
from safetensors.torch import load_file

from fedssl.core.errors import FedsslError
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from tests.helpers.small import TINY

FROZEN = {**TINY, "rounds": 3, "local_training.freeze": 2, "evaluation.every": 0, "engine": "in-process"}
PRIVATE = {
    "privacy.name": "client-dp",
    "privacy.clip_norm": 0.5,
    "privacy.noise_multiplier": 0.1,
    "privacy.noise_seed": "run",
    "update_rule.lambda_at": "client",
    "aggregation.batchnorm": "local-statistics",
}
BLOCKS = ("backbone.conv1", "backbone.bn1", "backbone.conv2", "backbone.bn2")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"aggregation.wire_dtype": "bf16", "aggregation.upload": "target", "update_rule.name": "replace"},
        {"aggregation.name": "median", "method.name": "mocov2", "method.queue_size": 16},
        {**PRIVATE, "privacy.placement": "central"},
        {**PRIVATE, "privacy.placement": "local"},
        {"update_rule.name": "fedu", "update_rule.between": "before-after"},
        {"aggregation.secure": True, "update_rule.lambda_at": "client"},
    ],
    ids=["fedema", "bf16 target", "median moco", "central noise", "local noise", "fedu", "secure"],
)
def test_frozen_tensors_keep_their_bits_and_all_else_is_trained(tmp_path, settings):
    config = load_config("smoke", FROZEN | settings)
    first = build(config).client.first_weights.online.tensors()
    summary = load("smoke", FROZEN | settings).run(tmp_path / "run").summary
    assert summary["status"] == "finished"
    last = load_file(tmp_path / "run" / "encoder.safetensors")
    same = {name for name in first if torch.equal(first[name], last[name])}
    assert {name for name in first if name.startswith(BLOCKS)} <= same
    assert not {name for name in first if name.endswith(("conv3.weight", "conv4.weight", "projector.0.weight"))} & same
    clients = [client for line in FinishedRun.open(tmp_path / "run").rounds for client in line["clients"]]
    divergences = [client["divergence"] for client in clients if "divergence" in client]
    silent = settings.get("privacy.placement") == "local" or settings.get("aggregation.secure")
    assert divergences or silent, "a client that adds noise or a mask tells no number of its own"
    assert all(0 < one < 100 for one in divergences)


def test_the_run_says_what_is_frozen_and_refuses_to_freeze_all():
    remarks = build(load_config("smoke", FROZEN)).remarks
    assert any(r.startswith("frozen: conv1, conv2 (2 of 4 blocks, ") for r in remarks)
    with pytest.raises(FedsslError, match=r"local_training\.freeze: 9 leaves nothing of the encoder to train"):
        build(load_config("smoke", {**FROZEN, "local_training.freeze": 9}))
