"""The commands as Python functions: what `fedssl.evaluate`, `fedssl.embed`, `fedssl.finetune` are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import fspath
from typing import Any, Literal

import torch
from torch import Tensor

from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.core.files import Place
from fedssl.core.registry import AllowCode
from fedssl.data.dataset import Refusal
from fedssl.encoders.embed import ImageReader, in_short
from fedssl.encoders.embed import embed as in_batches
from fedssl.encoders.evaluate import Request as Evaluation
from fedssl.encoders.evaluate import evaluate as evaluate_run
from fedssl.encoders.finetune import FineTuned, fine_tune
from fedssl.encoders.finetune import Request as FineTuning
from fedssl.encoders.trained import Client, Network, open_encoder
from fedssl.evaluation.protocols import Variant
from fedssl.evaluation.results import Result
from fedssl.experiment.progress.views import QuietView, View


@dataclass(frozen=True)
class Embedding:
    """Features of images, in the order of their names, and the images that have none."""

    names: list[str]
    features: Tensor  # N x d, on the CPU
    refused: list[Refusal]


def evaluate(
    run: Place,
    protocols: Sequence[str] = ("knn", "linear"),
    *,
    baselines: Sequence[str] = (),
    clients: bool = False,
    seeds: int = 1,
    variant: Variant = "paper",
    batchnorm: Literal["running", "reestimated", "both"] | None = None,
    data: str | None = None,
    data_settings: Mapping[str, Any] | None = None,
    epochs: Mapping[str, int] | None = None,
    device: str = "auto",
    cache: bool = True,
    view: View | None = None,
    allow_code: AllowCode = (),
) -> list[Result]:
    """How good the encoders of a run are; every result is kept in its folder. Options as of `fedssl evaluate`.

    >>> results = fedssl.evaluate("runs/x", ["knn"], baselines=["random"], batchnorm="running")
    >>> [(result.encoder, result.score.n) for result in results]
    [('global', 400), ('random', 400)]
    """
    request = Evaluation(
        protocols=protocols,
        variant=variant,
        seeds=seeds,
        batchnorm=batchnorm,
        data=data,
        data_settings=data_settings or {},
        baselines=baselines,
        clients=clients,
        epochs=epochs or {},
        device=device,
        cache=cache,
    )
    return evaluate_run(run, request, view, allow_code)


def embed(
    run: Place,
    *images: Place,
    client: Client = None,
    network: Network | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    view: View | None = None,
    allow_code: AllowCode = (),
) -> Embedding:
    """Features of image files, folders and tables, decoded as those of the run were.

    >>> made = fedssl.embed("runs/x", "photos/")
    >>> made.names[0], tuple(made.features.shape)
    ('photos/cat/000.png', (16, 64))
    """
    encoder, names, features = open_encoder(run, client, network, allow_code), list[str](), list[Tensor]()
    with view or QuietView() as shown:
        reader = ImageReader([fspath(image) for image in images], encoder.decoding, shown.progress)
        for batch in in_batches(encoder.model.backbone.to(choose_device(device)), reader, batch_size):
            names += batch.names
            features.append(batch.outputs)
    if not features:
        raise FedsslError(f"{', '.join(reader.places)}: no image there can be used{in_short(reader.refused)}")
    return Embedding(names, torch.cat(features), reader.refused)


def finetune(
    run: Place,
    data: Place,
    out: Place,
    *,
    test: Place = "",
    test_fraction: float = 0.2,
    data_settings: Mapping[str, Any] | None = None,
    client: Client = None,
    network: Network | None = None,
    head_only: bool = False,
    epochs: int = 100,
    lr: float = 1e-3,
    batch_size: int = 128,
    hidden: int = 4096,
    seed: int = 0,
    device: str = "auto",
    formats: Sequence[str] = ("safetensors",),
    view: View | None = None,
    allow_code: AllowCode = (),
) -> FineTuned:
    """A classifier from an encoder and a few labelled images, written to a new folder. Options as of `fedssl finetune`.

    >>> made = fedssl.finetune("runs/x", "photos/", "named", epochs=1, hidden=32)
    >>> made.classifier.class_names, made.learnt_from
    (['cat', 'dog'], 12)
    """
    request = FineTuning(
        data=fspath(data),
        test=fspath(test),
        test_fraction=test_fraction,
        data_settings=data_settings or {},
        client=client,
        network=network,
        head_only=head_only,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        hidden=hidden,
        seed=seed,
        device=device,
        formats=formats,
    )
    with view or QuietView() as shown:
        return fine_tune(run, request, out, shown.progress, shown.say, allow_code)
