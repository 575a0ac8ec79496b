"""The monitor of a run: kNN accuracy and the spread of the features, for the same images round after round."""

import base64
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedssl.core.progress import Progress, silent
from fedssl.evaluation.context import Context, FeatureKind, LabelledData
from fedssl.evaluation.features import BatchNorm, compute_features, with_reestimated_batchnorm
from fedssl.evaluation.protocols import KNN, Linear, Protocol
from fedssl.evaluation.score import SUFFIXES
from fedssl.methods.collapse import feature_std
from fedssl.networks.heads import Encoder


@dataclass(frozen=True)
class Measured:
    """What was measured of an encoder, and for each accuracy which test images it classifies correctly (1, else 0)."""

    values: dict[str, float]
    correct: dict[str, Tensor] = field(default_factory=dict)


def packed(correct: Tensor) -> str:
    """A bit for each image, as text: 10,000 images take 1.7 kB in a checkpoint."""
    return base64.b64encode(np.packbits(correct.numpy().astype(bool)).tobytes()).decode()


def unpacked(text: str, count: int) -> Tensor:
    """What `packed` was given for so many images."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count)
    return torch.from_numpy(bits.astype(np.float64))


def _share(correct: Tensor) -> float:
    return float(correct.sum()) / len(correct)


@dataclass(frozen=True)
class Monitor:
    """Labelled images to look at encoders with; pre-training never sees these labels."""

    data: LabelledData
    knn: KNN
    linear: Linear | None = None  # a linear probe for `full`, if any
    seed: int = 0

    def quick(self, encoder: Encoder, *, reestimate: bool = False, progress: Progress = silent) -> Measured:
        """The kNN accuracy and feature spread of one encoder."""
        return self._look(encoder, "reestimated" if reestimate else "running", None, "", progress)

    def full(self, encoder: Encoder, progress: Progress = silent) -> Measured:
        """Both BatchNorm modes (as they came, and re-estimated on these images), with a linear probe if asked."""
        measured = [self._look(encoder, mode, self.linear, suffix, progress) for suffix, mode in SUFFIXES.items()]
        return Measured(measured[0].values | measured[1].values, measured[0].correct | measured[1].correct)

    def without_probe(self) -> "Monitor":
        """The same with kNN alone, for many encoders."""
        return replace(self, linear=None)

    def _look(
        self, encoder: Encoder, batchnorm: BatchNorm, linear: Linear | None, suffix: str, progress: Progress
    ) -> Measured:
        context = Context(encoder, self.data, batchnorm=batchnorm, progress=progress)
        correct = {f"knn{suffix}": self._correct(self.knn, context)}
        values = {f"knn{suffix}": _share(correct[f"knn{suffix}"]), f"backbone_std{suffix}": self._std(context)}
        if linear:
            correct[f"linear{suffix}"] = self._correct(linear, context)
            values[f"linear{suffix}"] = _share(correct[f"linear{suffix}"])
        return Measured(values, correct)

    def _correct(self, protocol: Protocol, context: Context) -> Tensor:
        return (protocol.predict(context, self.seed, context.progress).classes == self.data.test_labels).double()

    def _std(self, context: Context) -> float:
        return feature_std(context.features(self.knn.features)[1])


@dataclass(frozen=True)
class SiteMonitor:
    """What each site finds with its own labelled images: numbers of them, and nothing about a single one."""

    knn: KNN
    linear: Linear
    seed: int = 0

    def correct(self, encoder: Encoder, data: LabelledData) -> dict[str, int]:
        """Test images classified correctly, with BatchNorm statistics re-estimated on the site's own images.

        The running ones of a random encoder say nothing: against them any training looks good.
        """
        context = Context(encoder, data, batchnorm="reestimated")
        classes = {"knn": self.knn.predict(context), "linear": self.linear.predict(context, self.seed)}
        return {name: int((predicted.classes == data.test_labels).sum()) for name, predicted in classes.items()}


@dataclass(frozen=True)
class SpreadMonitor:
    """For images without labels: whether features still tell images apart, which is all that can be said of them."""

    pixels: Tensor
    features: FeatureKind
    most: int = 500  # images, evenly spaced

    @cached_property
    def looked_at(self) -> Tensor:
        count = len(self.pixels)
        return self.pixels.index_select(0, torch.linspace(0, count - 1, min(count, self.most)).round().long())

    def quick(self, encoder: Encoder, *, reestimate: bool = False, progress: Progress = silent) -> Measured:
        """The feature spread of one encoder."""
        module = encoder.backbone if self.features == "backbone" else encoder
        if reestimate:
            module = with_reestimated_batchnorm(module, self.looked_at, progress=progress)
        return Measured({"backbone_std": feature_std(compute_features(module, self.looked_at, progress=progress))})

    def full(self, encoder: Encoder, progress: Progress = silent) -> Measured:
        """Both BatchNorm modes, as they came and re-estimated on these images."""
        again = self.quick(encoder, reestimate=True, progress=progress).values["backbone_std"]
        return Measured({**self.quick(encoder, progress=progress).values, "backbone_std_reestimated": again})

    def without_probe(self) -> "SpreadMonitor":
        """Itself: it has none."""
        return self


@dataclass(frozen=True)
class NoMonitor:
    """For a server that holds no image at all: the clients' own numbers are all there is."""

    def quick(self, encoder: Encoder, *, reestimate: bool = False, progress: Progress = silent) -> Measured:  # noqa: ARG002
        return Measured({})

    def full(self, encoder: Encoder, progress: Progress = silent) -> Measured:  # noqa: ARG002
        return Measured({})

    def without_probe(self) -> "NoMonitor":
        """Itself: it has none."""
        return self
