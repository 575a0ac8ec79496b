"""The labelled images of an evaluation: the run's own, or those of another dataset; labels that must be unseen are."""

from dataclasses import asdict

import numpy as np

from fedssl.core.errors import FedsslError
from fedssl.core.settings import settings_of
from fedssl.data import DATASETS
from fedssl.data.dataset import Dataset, Images, fingerprint, where
from fedssl.data.holdout import choose_labelled
from fedssl.data.partition import IntArray
from fedssl.encoders.evaluate.request import Request
from fedssl.encoders.trained import decoding_of
from fedssl.evaluation.context import LabelledData
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.config.resolve import choice
from fedssl.experiment.config.schema import Choice, Raw
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.encoder_file import read_encoder


def find_data(run: FinishedRun, request: Request) -> tuple[Choice, LabelledData]:
    """The settings of the dataset that the request is about, and its images with labels, checked."""
    chosen, data = _own(run) if request.data is None else _other(run, request)
    data.check()
    return chosen, data


def _own(run: FinishedRun) -> tuple[Choice, LabelledData]:
    dataset = run.dataset
    train, test = _labelled(run.config.data, dataset, str(run.folder.path))

    def labelled(fraction: float) -> IntArray:
        needed = _chosen(run, run.config.data, train, fraction)
        if dataset.eval_train is None and not np.isin(needed, run.partition.labelled).all():
            held, given = len(run.partition.labelled), run.config.data.settings["labelled_fraction"]
            raise FedsslError(
                f"{run.folder.path}: semi-{100 * fraction:g} needs {len(needed)} training images that pre-training "
                f"never saw, but the run held out {held} (data.labelled_fraction = {given:g}): pre-train again with "
                f"--set data.labelled_fraction={fraction:g}"
            )
        return needed

    recorded = run.summary.get("data", {}).get("train_fingerprint")
    if recorded not in (None, fingerprint(dataset.train)):
        raise FedsslError(
            f"{run.folder.path}: the images of {dataset.name} on this machine are not those of the run (another "
            f"fingerprint): fetch them again, or look at them as other data with --data {dataset.name}"
        )
    return run.config.data, LabelledData(dataset.name, train, test, labelled)


def _labelled(chosen: Choice, dataset: Dataset, place: str) -> tuple[Images, Images]:
    """(training, test) images with labels, or an error that says how to come by them."""
    if dataset.labelled is not None:
        return dataset.labelled
    if where(chosen.factory) == "here":
        raise FedsslError(
            f"{place}: no accuracy can be given without labelled test images: name some with --data folder --set "
            "path=TRAIN --set eval_test=TEST"
        )
    raise FedsslError(f"{dataset.name}: the dataset has no labels: evaluation needs labelled images")


def _other(run: FinishedRun, request: Request) -> tuple[Choice, LabelledData]:
    chosen = choice("data", {"name": request.data, **_as_in_run(run, request), **request.data_settings})
    dataset, own = build_dataset(chosen), run.dataset.train
    train, test = _labelled(chosen, dataset, f"--data {dataset.name}")
    for images in (train, test):
        if (images.channels, images.image_size) != (own.channels, own.image_size):
            raise FedsslError(
                f"--data {dataset.name}: its images are {images.shape_text}, the encoder was trained on "
                f"{own.shape_text}: choose a dataset of that size"
            )

    def labelled(fraction: float) -> IntArray:
        if chosen.name == run.config.data.name:
            raise FedsslError(
                f"--data {chosen.name}: the run was pre-trained on {chosen.name} too and may have seen the labelled "
                "images: leave --data out for semi-supervised evaluation"
            )
        return _chosen(run, chosen, train, fraction)

    return chosen, LabelledData(dataset.name, train, test, labelled)


def _as_in_run(run: FinishedRun, request: Request) -> Raw:
    """Files are brought to the run's size in the run's way, unless the request says otherwise."""
    if "resampling" not in settings_of(DATASETS.find(request.data)):
        return {}
    return asdict(decoding_of(run, read_encoder(run.folder.encoder).about))


def _chosen(run: FinishedRun, data: Choice, images: Images, fraction: float) -> IntArray:
    """The labelled images of this fraction, as a run with this seed and `labelled_fraction` would hold them out."""
    labels = None if images.labels is None else images.labels.numpy()
    settings = data.settings_for(choose_labelled) | {"labelled_fraction": fraction}
    return choose_labelled(labels, len(images), run.config.run.seed, **settings)
