"""The monitor of a run: kNN accuracy and the spread of the features, for the same images round after round."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedssl.evaluation.bench import Bench, FeatureKind, LabelledData
from fedssl.evaluation.features import Watch, compute_features, unwatched, with_reestimated_batchnorm
from fedssl.evaluation.protocols import KNN, Linear, Protocol
from fedssl.evaluation.score import Score
from fedssl.methods.collapse import feature_std
from fedssl.networks.heads import Encoder


@dataclass(frozen=True)
class Monitor:
    """Labelled images to look at encoders with; pre-training never sees these labels."""

    data: LabelledData
    knn: KNN
    linear: Linear | None = None  # a linear probe for `full`, if any
    seed: int = 0

    def quick(self, encoder: Encoder, *, reestimate: bool = False, watch: Watch = unwatched) -> dict[str, float]:
        """The kNN accuracy and feature spread of one encoder."""
        bench = Bench(encoder, self.data, "reestimated" if reestimate else "running", watch=watch)
        return {"knn": self._accuracy(self.knn, bench), "backbone_std": self._std(bench)}

    def full(self, encoder: Encoder, watch: Watch = unwatched) -> dict[str, float]:
        """Both BatchNorm modes (as they came, and re-estimated on these images), with a linear probe if asked."""
        results: dict[str, float] = {}
        for suffix, batchnorm in (("", "running"), ("_reestimated", "reestimated")):
            bench = Bench(encoder, self.data, batchnorm, watch=watch)  # type: ignore[arg-type]
            results[f"knn{suffix}"] = self._accuracy(self.knn, bench)
            results[f"backbone_std{suffix}"] = self._std(bench)
            if self.linear:
                results[f"linear{suffix}"] = self._accuracy(self.linear, bench)
        return results

    def _accuracy(self, protocol: Protocol, bench: Bench) -> float:
        return Score.of(protocol.predict(bench, self.seed, bench.watch).classes, self.data.test_labels).accuracy

    def _std(self, bench: Bench) -> float:
        return feature_std(bench.features(self.knn.features)[1])


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

    def quick(self, encoder: Encoder, *, reestimate: bool = False, watch: Watch = unwatched) -> dict[str, float]:
        """The feature spread of one encoder."""
        module = encoder.backbone if self.features == "backbone" else encoder
        if reestimate:
            module = with_reestimated_batchnorm(module, self.looked_at, watch=watch)
        return {"backbone_std": feature_std(compute_features(module, self.looked_at, watch=watch))}

    def full(self, encoder: Encoder, watch: Watch = unwatched) -> dict[str, float]:
        """Both BatchNorm modes, as they came and re-estimated on these images."""
        again = self.quick(encoder, reestimate=True, watch=watch)["backbone_std"]
        return {**self.quick(encoder, watch=watch), "backbone_std_reestimated": again}


@dataclass(frozen=True)
class NoMonitor:
    """For a server that holds no image at all: the clients' own numbers are all there is."""

    def quick(self, encoder: Encoder, *, reestimate: bool = False, watch: Watch = unwatched) -> dict[str, float]:  # noqa: ARG002
        return {}

    def full(self, encoder: Encoder, watch: Watch = unwatched) -> dict[str, float]:  # noqa: ARG002
        return {}
