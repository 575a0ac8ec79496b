"""Protocols by name: each says, for one encoder, which class every test image has; counting is done in one place.

A protocol is a frozen dataclass whose fields are its settings, with one method, `predict`. Where the paper and the
authors' code differ there are two variants of it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.core.registry import Registry
from fedssl.data.partition import IntArray
from fedssl.evaluation.context import Context, FeatureKind, LabelledData
from fedssl.evaluation.fine_tune import best_head_predictions, class_predictions, fine_tuned, new_head
from fedssl.evaluation.fitting import Fitting
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.linear_probe import linear_probe_predictions

Variant = Literal["paper", "authors"]


@dataclass(frozen=True)
class Predictions:
    """One class for each test image, and what else is worth recording."""

    classes: Tensor
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """From an encoder and labelled images to one class for each test image."""

    draws: ClassVar[bool] = True  # does anything depend on the seed?
    frozen: ClassVar[bool] = True  # does it look at fixed features only?
    in_run: ClassVar[bool] = False  # does every run record it by itself?
    trains: ClassVar[str] = ""  # what it trains, by the name under which a request gives the epochs

    def adapted(self, **settings: Any) -> Self:
        """With those of these settings that it has; None leaves one as it is."""
        own = {name: value for name, value in settings.items() if value is not None and hasattr(self, name)}
        return replace(self, **own)

    def check(self, data: LabelledData) -> None:  # noqa: B027 - most take any
        """Refuses data that it cannot be used with, before anything is computed."""

    @abstractmethod
    def predict(self, context: Context, seed: int, progress: Progress = silent) -> Predictions: ...


@dataclass(frozen=True, kw_only=True)
class KNN(Protocol):
    """Weighted votes of the k nearest training images by cosine."""

    k: int = 200
    temperature: float = 0.1
    features: FeatureKind = "backbone"
    draws: ClassVar[bool] = False
    in_run: ClassVar[bool] = True

    def predict(self, context: Context, seed: int = 0, progress: Progress = silent) -> Predictions:  # noqa: ARG002
        train, test = context.features(self.features)
        data = context.data
        votes = {"k": self.k, "temperature": self.temperature, "num_classes": data.num_classes}
        return Predictions(knn_predictions(train, data.train_labels, test, **votes))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Linear(Protocol):
    """One linear layer on frozen backbone features."""

    epochs: int = 200
    batch_size: int = 512
    lr: float = 3e-3
    shuffle: bool = True
    trains: ClassVar[str] = "linear"

    def predict(self, context: Context, seed: int, progress: Progress = silent) -> Predictions:
        train, test = context.features("backbone")
        data = context.data
        fitting = Fitting(self.epochs, self.batch_size, self.lr, self.shuffle)
        options: dict[str, Any] = {"num_classes": data.num_classes, "fitting": fitting, "seed": seed}
        return Predictions(linear_probe_predictions(train, data.train_labels, test, progress=progress, **options))


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(Protocol):
    """A new two-layer MLP on the backbone, learnt from the held-out labelled images."""

    fraction: float
    hidden: int = 4096
    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-3
    trained: Literal["whole model", "head"] = "whole model"  # of the head, the epoch that is best on the test images
    frozen: ClassVar[bool] = False
    trains: ClassVar[str] = "semi"

    def predict(self, context: Context, seed: int, progress: Progress = silent) -> Predictions:
        chosen = self.labelled(context.data)
        fitting = Fitting(self.epochs, self.batch_size, self.lr)
        data, facts = context.data, {"labelled_images": len(chosen)}
        if self.trained == "head":
            train, test = context.features("backbone")
            head = new_head(train.shape[1], self.hidden, data.num_classes, seed)
            few = train[chosen], data.train_labels[chosen]
            classes, epoch = best_head_predictions(head, *few, test, data.test_labels, fitting, seed, progress)
            return Predictions(classes, facts | {"epoch": epoch})
        head = new_head(context.feature_size, self.hidden, data.num_classes, seed)
        model = fine_tuned(context.encoder.backbone, data.train, head, fitting, seed, progress, chosen)
        return Predictions(class_predictions(model, data.test.pixels), facts | {"epoch": self.epochs})

    def check(self, data: LabelledData) -> None:
        self.labelled(data)

    def labelled(self, data: LabelledData) -> IntArray:
        """The numbers of the training images to learn from; refuses too few, and images that are not unseen."""
        if data.labelled is None:
            raise FedsslError(f"{data.name}: no labelled images are known for semi-supervised evaluation")
        chosen = data.labelled(self.fraction)
        if len(chosen) < 2:
            raise FedsslError(
                f"{data.name}: {100 * self.fraction:g} % of its training images are {len(chosen)}: too few to "
                "fine-tune on; take a larger fraction or more images"
            )
        return chosen


PROTOCOLS: Registry[dict[Variant, Protocol]] = Registry(
    "protocols",
    "--protocol",
    {
        "knn": {"paper": KNN(), "authors": KNN(features="projection")},
        "linear": {"paper": Linear(), "authors": Linear(batch_size=2048, shuffle=False)},
        "semi-1": {"paper": SemiSupervised(fraction=0.01), "authors": SemiSupervised(fraction=0.01, trained="head")},
        "semi-10": {"paper": SemiSupervised(fraction=0.1), "authors": SemiSupervised(fraction=0.1, trained="head")},
    },
    base=dict,
)


def in_run(name: str) -> bool:
    """Whether a protocol of this name is ours and every run records it by itself."""
    return name in PROTOCOLS and PROTOCOLS[name]["paper"].in_run
