"""The monitor of a run: kNN accuracy and the spread of the features, for the same images round after round."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedssl.data.images import Images
from fedssl.evaluation.features import compute_features, with_reestimated_batchnorm
from fedssl.evaluation.knn import knn_accuracy
from fedssl.evaluation.linear_probe import linear_probe_accuracy
from fedssl.methods.collapse import feature_std
from fedssl.networks.heads import Encoder


@dataclass(frozen=True)
class Monitor:
    """Labelled images to look at encoders with; pre-training never sees these labels."""

    train: Images
    test: Images
    k: int = 200
    temperature: float = 0.1
    features: Literal["backbone", "projection"] = "backbone"
    linear_epochs: int = 200
    seed: int = 0

    def quick(self, encoder: Encoder, *, reestimate: bool = False) -> dict[str, float]:
        """The kNN accuracy and feature spread of one encoder."""
        module = self._module(encoder, reestimate)
        train, test = self._features(module)
        return {"knn": self._knn(train, test), "backbone_std": feature_std(test)}

    def full(self, encoder: Encoder, *, linear: bool, only_reestimated: bool = False) -> dict[str, float]:
        """Both BatchNorm variants (as they came, and re-estimated on these images), with a linear probe if asked."""
        results: dict[str, float] = {}
        for suffix, reestimate in (("", False), ("_reestimated", True)):
            if only_reestimated and not reestimate:
                continue
            train, test = self._features(self._module(encoder, reestimate))
            results[f"knn{suffix}"] = self._knn(train, test)
            results[f"backbone_std{suffix}"] = feature_std(test)
            if linear:
                results[f"linear{suffix}"] = linear_probe_accuracy(
                    train, _labels(self.train), test, _labels(self.test), epochs=self.linear_epochs, seed=self.seed
                )
        return results

    def _module(self, encoder: Encoder, reestimate: bool) -> nn.Module:
        module = encoder.backbone if self.features == "backbone" else encoder
        return with_reestimated_batchnorm(module, self.train.pixels) if reestimate else module

    def _features(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        return compute_features(module, self.train.pixels), compute_features(module, self.test.pixels)

    def _knn(self, train: Tensor, test: Tensor) -> float:
        return knn_accuracy(train, _labels(self.train), test, _labels(self.test), self.k, self.temperature)


def _labels(images: Images) -> Tensor:
    assert images.labels is not None
    return images.labels
