"""The monitor of a run: kNN accuracy and the spread of the features, for the same images round after round."""

from dataclasses import dataclass

from fedssl.evaluation.bench import Bench, LabelledData
from fedssl.evaluation.features import Watch, unwatched
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
