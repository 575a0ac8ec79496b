"""An entry for each registry that examples/plugin does not add to, in settings and options as own_entries:NAME."""

from contextlib import nullcontext

import numpy as np

from fedssl.core.settings import Count, Fraction
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.dataset import Dataset
from fedssl.data.own.folder import find_in_folder
from fedssl.data.own.layouts import Layout
from fedssl.data.partition import Partition
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.encoders.export.formats import Format
from fedssl.evaluation.protocols import KNN
from fedssl.experiment.backends import Carrier
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.privacy.mechanism import ClientDP


def shapes(progress, *, images: Count = 80):
    """A dataset."""
    train, test = (synthetic_images(count, 10, 16, 1, part) for count, part in ((images, "train"), (40, "test")))
    return Dataset(name="shapes", train=train, test=test, source="made here")


def halves(labels, num_images, seed, owners=None, *, first: Fraction = 0.5):
    """A partition, with no setting of ours."""
    return Partition(tuple(np.split(np.arange(num_images), [round(first * num_images)])), unused=0)


def mirrored(*, often: Fraction = 0.5):
    """A recipe."""
    return Recipe(flip=often, jitter=0.0)


def always_noisy(*, noise: Fraction = 0.1):
    """A kind of privacy."""
    return ClientDP(clip_norm=1.0, noise_multiplier=noise, noise_seed="run")


class Backwards(Carrier):
    """An engine: the last client first."""

    def open(self, run):
        class Engine(InProcessEngine):
            def run_tasks(self, tasks):
                return super().run_tasks(tasks[::-1])

        return nullcontext(Engine(run.parts.client, run.store, run.view.progress, None))


def _names(encoder, path):
    path.write_text("\n".join(encoder.model.backbone.state_dict()), encoding="utf-8")


names = Format("names.txt", _names, lambda about: "One name a line.")
nearest = {"paper": KNN(k=1), "authors": KNN(k=3)}
flat = Layout(find_in_folder, "folder")
