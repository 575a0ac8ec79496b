"""The labelled images of an evaluation: the run's own, or those of another dataset; labels that must be unseen are."""

import numpy as np

from fedssl.build import build_dataset
from fedssl.config import Choice, choice
from fedssl.data.images import Images
from fedssl.data.labelled import choose_labelled
from fedssl.data.partition import IntArray
from fedssl.errors import FedsslError
from fedssl.evaluate.request import Request
from fedssl.evaluation.bench import LabelledData
from fedssl.finished_run import FinishedRun


def find_data(run: FinishedRun, request: Request) -> tuple[Choice, LabelledData]:
    """The settings of the dataset that the request is about, and its images with labels, checked."""
    chosen, data = _own(run) if request.data is None else _other(run, request)
    data.check()
    return chosen, data


def _own(run: FinishedRun) -> tuple[Choice, LabelledData]:
    dataset = run.dataset

    def labelled(fraction: float) -> IntArray:
        needed = _chosen(run, run.config.data, dataset.train, fraction)
        if not np.isin(needed, run.partition.labelled).all():
            held, given = len(run.partition.labelled), run.config.data.settings["labelled_fraction"]
            raise FedsslError(
                f"{run.folder.path}: semi-{100 * fraction:g} needs {len(needed)} training images that pre-training "
                f"never saw, but the run held out {held} (data.labelled_fraction = {given:g}): pre-train again with "
                f"--set data.labelled_fraction={fraction:g}"
            )
        return needed

    data = LabelledData(dataset.name, dataset.train, dataset.test, labelled)
    recorded = run.summary.get("data", {}).get("train_fingerprint")
    if recorded not in (None, data.fingerprints["train"]):
        raise FedsslError(
            f"{run.folder.path}: the images of {data.name} on this machine are not those of the run (another "
            f"fingerprint): fetch them again, or look at them as other data with --data {data.name}"
        )
    return run.config.data, data


def _other(run: FinishedRun, request: Request) -> tuple[Choice, LabelledData]:
    chosen = choice("data", {"name": request.data, **request.data_settings})
    dataset, own = build_dataset(chosen), run.dataset.train
    for images in (dataset.train, dataset.test):
        if (images.channels, images.image_size) != (own.channels, own.image_size):
            raise FedsslError(
                f"--data {dataset.name}: its images are {_shape(images)}, the encoder was trained on {_shape(own)}: "
                "choose a dataset of that size"
            )

    def labelled(fraction: float) -> IntArray:
        if chosen.name == run.config.data.name:
            raise FedsslError(
                f"--data {chosen.name}: the run was pre-trained on {chosen.name} too and may have seen the labelled "
                "images: leave --data out for semi-supervised evaluation"
            )
        return _chosen(run, chosen, dataset.train, fraction)

    return chosen, LabelledData(dataset.name, dataset.train, dataset.test, labelled)


def _chosen(run: FinishedRun, data: Choice, images: Images, fraction: float) -> IntArray:
    """The labelled images of this fraction, as a run with this seed and `labelled_fraction` would hold them out."""
    labels = None if images.labels is None else images.labels.numpy()
    settings = data.settings_for(choose_labelled) | {"labelled_fraction": fraction}
    return choose_labelled(labels, len(images), run.config.run.seed, **settings)


def _shape(images: Images) -> str:
    return f"{images.channels} x {images.image_size[0]} x {images.image_size[1]}"
