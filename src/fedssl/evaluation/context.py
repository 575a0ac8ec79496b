"""What every protocol is given: one encoder before labelled images, with features that are computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.core.weights import Weights
from fedssl.data.dataset import Images, fingerprint
from fedssl.data.partition import IntArray
from fedssl.evaluation.feature_cache import FeatureCache
from fedssl.evaluation.features import BatchNorm, compute_features, with_reestimated_batchnorm
from fedssl.networks.heads import Encoder

FeatureKind = Literal["backbone", "projection"]


@dataclass(frozen=True)
class LabelledData:
    """Training and test images with labels; `labelled` gives the training images of a semi-supervised fraction."""

    name: str
    train: Images
    test: Images
    labelled: Callable[[float], IntArray] | None = None

    @cached_property
    def train_labels(self) -> Tensor:
        return self._labels(self.train)

    @cached_property
    def test_labels(self) -> Tensor:
        return self._labels(self.test)

    @cached_property
    def num_classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}

    def check(self) -> None:
        """Refuses labels that are not 0 … C − 1: a class without training images could not be named."""
        known = torch.unique(self.train_labels)
        if not torch.equal(known, torch.arange(len(known))):
            missing = np.setdiff1d(np.arange(self.num_classes), known.numpy())[0]
            raise FedsslError(
                f"{self.name}: the labels of its training images are not 0 … C − 1 (there is no image of class "
                f"{missing}, and one of class {int(known.max())}): number its classes without gaps"
            )
        if self.num_classes > len(known):
            raise FedsslError(
                f"{self.name}: its test images have the class {self.num_classes - 1}, its training images only "
                f"0 … {len(known) - 1}: drop the test images of other classes"
            )

    def _labels(self, images: Images) -> Tensor:
        if images.labels is None or not len(images):
            what = "images" if images.labels is not None else "labels"
            raise FedsslError(f"{self.name}: the dataset has no {what}: evaluation needs labelled images")
        return images.labels


class Context:
    """An encoder in one BatchNorm mode before labelled images."""

    def __init__(
        self,
        encoder: Encoder,
        data: LabelledData,
        *,
        batchnorm: BatchNorm = "running",
        cache: FeatureCache | None = None,
        progress: Progress = silent,
        title: str = "evaluation",
    ) -> None:
        self.original, self.data, self.batchnorm = encoder, data, batchnorm
        self.cache, self.progress, self.title = cache, progress, title
        self._known: dict[FeatureKind, tuple[Tensor, Tensor]] = {}

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder with the statistics of its mode; never trained in place."""
        if self.batchnorm == "running":
            return self.original
        text = f"{self.title}: BatchNorm statistics"
        fitted = with_reestimated_batchnorm(self.original, self.data.train.pixels, progress=self.progress, text=text)
        assert isinstance(fitted, Encoder)
        return fitted

    @cached_property
    def weights_sha256(self) -> str:
        return Weights.of(self.original).digest()

    @cached_property
    def feature_size(self) -> int:
        return compute_features(self.original.backbone, self.data.test.pixels[:2]).shape[1]

    def features(self, kind: FeatureKind) -> tuple[Tensor, Tensor]:
        """(train, test) features: from memory, from the cache, or computed and put there."""
        if kind not in self._known:
            self._known[kind] = self._cached(kind)
        return self._known[kind]

    def _cached(self, kind: FeatureKind) -> tuple[Tensor, Tensor]:
        if self.cache is None:
            return self._compute(kind)
        prints = self.data.fingerprints
        key = f"weights {self.weights_sha256}, train {prints['train']}, test {prints['test']}, {self.batchnorm}, {kind}"
        features = self.cache.load(key)
        if features is None:
            features = self._compute(kind)
            self.cache.save(key, *features)
        return features

    def _compute(self, kind: FeatureKind) -> tuple[Tensor, Tensor]:
        module = self.encoder.backbone if kind == "backbone" else self.encoder
        train, test = (
            compute_features(
                module, images.pixels, progress=self.progress, text=f"{self.title}: features of {part} images"
            )
            for part, images in (("training", self.data.train), ("test", self.data.test))
        )
        return train, test
