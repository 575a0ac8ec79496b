"""`fedssl finetune`: from an encoder and a few labelled images to a classifier, and how often it is right."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedssl import __version__
from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.core.files import Place, new_folder
from fedssl.core.progress import Progress, Say, say_nothing, silent
from fedssl.core.registry import AllowCode
from fedssl.data.dataset import Dataset, Refusal
from fedssl.data.own.folder import SILOS, look_like_sites
from fedssl.encoders.classifier import FILE, Classifier, save_classifier
from fedssl.encoders.embed import refusal_lines
from fedssl.encoders.export.formats import FORMATS, find_format
from fedssl.encoders.markdown import markdown
from fedssl.encoders.trained import Client, Network, TrainedEncoder, open_encoder, permission
from fedssl.evaluation.features import compute_features
from fedssl.evaluation.fine_tune import NAME, class_predictions, fine_tuned, new_head
from fedssl.evaluation.fitting import Fitting, fit
from fedssl.evaluation.score import Score, confusion_matrix
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.config.resolve import choice
from fedssl.experiment.records.run_record import SUMMARY, read_summary
from fedssl.reports.pictures import confusion_picture

MOST_CLASSES = 200  # that a picture of the confusion matrix can show


@dataclass(frozen=True)
class Request:
    """What to learn from, and how; as the semi-supervised protocol does it, unless said otherwise."""

    data: str
    _: KW_ONLY
    test: str = ""  # a place with test images; none: `test_fraction` of every class
    test_fraction: float = 0.2
    data_settings: Mapping[str, Any] = field(default_factory=dict)
    client: Client = None
    network: Network | None = None
    head_only: bool = False
    epochs: int = 100
    lr: float = 1e-3
    batch_size: int = 128
    hidden: int = 4096
    seed: int = 0
    device: str = "auto"
    formats: Sequence[str] = ("safetensors",)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "hidden"):
            if getattr(self, name) < 1:
                raise FedsslError(f"--{name.replace('_', '-')}: {getattr(self, name)} is not 1 or more")
        if self.lr <= 0:
            raise FedsslError(f"--lr: {self.lr:g} is not above 0")
        if not 0 <= self.test_fraction < 1:
            raise FedsslError(f"--test-fraction: {self.test_fraction:g} is not from 0 to below 1")
        for name in self.formats:
            if find_format(name).write_classifier is None:
                able = " or ".join(name for name, one in FORMATS.items() if one.write_classifier)
                raise FedsslError(f"--to: a classifier is written as {able}, not as {name}")


@dataclass(frozen=True)
class FineTuned:
    """A classifier that was written to a folder, and how it did on images that it had not seen."""

    folder: Path
    classifier: Classifier
    _: KW_ONLY
    score: Score | None  # None: there were no test images
    learnt_from: int
    refused: tuple[Refusal, ...]


def fine_tune(
    run: Place,
    request: Request,
    out: Place,
    progress: Progress = silent,
    say: Say = say_nothing,
    allow_code: AllowCode = (),
) -> FineTuned:
    """Trains a classifier on the encoder of a run and writes it with its results into a new folder.

    >>> made = fine_tune("runs/x", Request("photos/", epochs=1, hidden=32), "classifier")
    >>> made.classifier.class_names, made.learnt_from
    (['cat', 'dog'], 12)
    """
    encoder = open_encoder(run, request.client, request.network, allow_code)
    forms = [find_format(name) for name in request.formats]
    for form in forms:
        form.check(encoder.about)
    dataset = _labelled(encoder, request, progress)
    if sites := _sites(run, dataset):
        say(f"warning: --data {request.data}: {sites}")
    with new_folder(Path(out)) as folder:
        model = _trained(encoder, dataset, request, progress)
        classifier = Classifier(model[0], model[1], _about(encoder, dataset, request)).to("cpu").eval()
        for write in dict.fromkeys([save_classifier, *(form.write_classifier or save_classifier for form in forms)]):
            write(classifier, folder)
        score = _write_results(folder, model, dataset, classifier, request)
    return FineTuned(Path(out), classifier, score=score, learnt_from=len(dataset.train), refused=dataset.refused)


def _labelled(encoder: TrainedEncoder, request: Request, progress: Progress) -> Dataset:
    """The images to learn from and to test with, decoded as those of the run."""
    settings = {
        **asdict(encoder.decoding),
        "path": request.data,
        "eval_test": request.test,
        "test_fraction": 0.0 if request.test else float(request.test_fraction),
        **request.data_settings,
    }
    dataset = build_dataset(choice("data", {"name": "folder", **settings}), progress)
    if dataset.train.labels is None or dataset.train.num_classes < 2:
        raise FedsslError(
            f"--data {request.data}: two or more classes are needed: a subfolder for each, a column or array `label`"
        )
    if len(dataset.train) < 2:
        raise FedsslError(f"--data {request.data}: {len(dataset.train)} image to learn from is too few")
    return dataset


def _sites(run: Place, dataset: Dataset) -> str:
    """A warning where silos were given for classes: these are clients of the run, or look like sites."""
    classes = set(dataset.train.class_names)
    folders = [one.name.split(os.sep)[:-1] for one in dataset.originals]  # noqa: PTH206 - a Path of each would be slow
    summary = read_summary(Path(run)) if (Path(run) / SUMMARY).exists() else {}
    clients = classes & set(summary.get("data", {}).get("client_names", []))
    if len(clients) > 1:  # not all of them: a run leaves out a silo with one image
        return f"the classes {', '.join(sorted(clients))} are clients of the run, sites and not classes: {SILOS}"
    by_folder = {folder[0] if folder else "" for folder in folders} == classes
    return look_like_sites(folders) if by_folder else ""


def _trained(encoder: TrainedEncoder, dataset: Dataset, request: Request, progress: Progress) -> nn.Sequential:
    """Backbone and head; with `head_only` the backbone is as it was."""
    images, feature_size = dataset.train, encoder.about["feature_size"]
    assert images.labels is not None
    head = new_head(feature_size, request.hidden, images.num_classes, request.seed)
    backbone = encoder.model.backbone.to(choose_device(request.device))
    fitting = Fitting(request.epochs, request.batch_size, request.lr)
    if not request.head_only:
        return fine_tuned(backbone, images, head, fitting, request.seed, progress)
    features = compute_features(backbone, images.pixels, progress=progress)
    fit(head, lambda chosen: features.index_select(0, chosen), images.labels, fitting, request.seed, NAME, progress)
    return nn.Sequential(backbone, head.to(next(backbone.parameters()).device))


def _about(encoder: TrainedEncoder, dataset: Dataset, request: Request) -> dict[str, Any]:
    return {
        **encoder.about,
        "classes": list(dataset.train.class_names),
        "hidden": request.hidden,
        "made_by": f"fedssl {__version__}",
    }


def _write_results(
    folder: Path, model: nn.Sequential, dataset: Dataset, classifier: Classifier, request: Request
) -> Score | None:
    names, test = classifier.class_names, dataset.test
    settings = {key: value for key, value in asdict(request).items() if key not in ("data", "test", "data_settings")}
    result: dict[str, Any] = {"learnt_from": len(dataset.train), "classes": names, "settings": settings}
    score = None
    if test is not None and test.labels is not None:
        predictions = class_predictions(model, test.pixels)
        score = Score.of(predictions, test.labels)
        counted = {"accuracy": score.accuracy, "interval_95": list(score.interval)}
        result |= {**counted, "correct": score.correct, "n": score.n}
        matrix = confusion_matrix(test.labels, predictions, len(names))
        _write_json(folder / "confusion.json", {"classes": names, "true_by_named": matrix.tolist()})
        if len(names) <= MOST_CLASSES:
            right = f"{score.correct} of {score.n} right"
            confusion_picture(folder / "confusion.png", matrix.numpy(), names, right)
    _write_json(folder / "result.json", result)
    if dataset.refused:
        (folder / "skipped.jsonl").write_text(refusal_lines(dataset.refused), encoding="utf-8")
    about = {"about": classifier.about, "classes": names, "file": FILE, "permission": permission(classifier.about)}
    readme = markdown("classifier", **about, request=request, learnt_from=len(dataset.train), score=score)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    return score


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
