"""Every method in a whole run: in bf16, resumed after its first round and after a kill, evaluated, exported."""

import os
import signal

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.encoders.export import export_encoder
from fedssl.encoders.trained import load_encoder
from fedssl.experiment.experiment import load
from fedssl.federation.client_store import ClientStore
from fedssl.methods import METHODS
from tests.helpers.faults import CONTEXT, everything
from tests.helpers.small import TINY

SMALL = TINY | {"data.train_images": 32, "data.test_images": 10, "partition.num_clients": 2, "evaluation.k": 5}
SETTINGS = {
    "mocov1": {"method.queue_size": 16},
    "mocov2": {"method.queue_size": 16},
    "dino": {"method.prototypes": 12, "method.local_views": 1},
    "mae": {
        "network.name": "vit-tiny",
        "network.depth": 1,
        "method.decoder_width": 8,
        "method.decoder_depth": 1,
        "update_rule.norm": "l2",
    },
    "fedca": {"method.public_images": 4, "method.align_epochs": 1},
}


def killed_child(settings, folder):
    """Dies in round 2, when one client has saved its state and the next is about to."""
    saved = ClientStore.save

    def save(store, task, *rest):
        if (task.round_number, task.client_id) == (2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return saved(store, task, *rest)

    ClientStore.save = save
    load("smoke", settings).run(folder)


@pytest.mark.parametrize("name", METHODS)
def test_runs_in_bf16_resumes_and_is_evaluated_and_exported(tmp_path, name):
    settings = SMALL | SETTINGS.get(name, {}) | {"method.name": name}
    # Constant: with a cosine the first of two rounds is not a run of one round.
    settings |= {"local_training.precision": "bf16", "local_training.schedule": "constant"}
    load("smoke", settings).run(tmp_path / "whole")
    load("smoke", settings | {"rounds": 1}).run(tmp_path / "part")
    load("smoke", settings).run(tmp_path / "part", force=True)
    child = CONTEXT.Process(target=killed_child, args=(settings, tmp_path / "killed"))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    load("smoke", settings).run(tmp_path / "killed")
    whole, part, killed = (everything(tmp_path / one) for one in ("whole", "part", "killed"))
    assert (part["global"], part["clients"]) == (whole["global"], whole["clients"])
    assert killed == whole
    assert whole["rounds"][-1]["knn"] == part["rounds"][-1]["knn"]
    export_encoder(tmp_path / "whole", tmp_path / "out", ["safetensors"])
    images = torch.rand(3, 3, 16, 16)
    features = load_encoder(tmp_path / "whole")(images)
    assert torch.isfinite(features).all()
    assert torch.equal(features, load_encoder(tmp_path / "out")(images))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method.name": "mae"}, r'mae masks patches .*network\.name = "vit-tiny"'),
        (SETTINGS["mae"] | {"method.name": "mae", "update_rule.norm": "mean-conv"}, "'mean-conv' needs convolutions"),
        # The images have one patch, their views not even that.
        (
            {"network.name": "vit-tiny", "network.depth": 1, "network.patch_size": 16, "augmentation.output_size": 8},
            r"fails on views \(augmentation.output_size\) of 3x8x8: .*set augmentation.output_size = 28",
        ),
    ],
)
def test_what_cannot_go_together_is_refused_before_anything_is_written(tmp_path, settings, message):
    with pytest.raises(FedsslError, match=message):
        load("smoke", SMALL | settings).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
