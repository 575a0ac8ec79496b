"""A finished run looked at through its images: features of the random and the trained encoder, and figures of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedssl.build import choose_device
from fedssl.data.augmentations import RECIPES, two_views
from fedssl.data.images import Images
from fedssl.errors import FedsslError
from fedssl.evaluation.features import compute_features, with_reestimated_batchnorm
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.projection import principal_components, tsne
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.finished_run import FinishedRun
from fedssl.networks.heads import Encoder
from fedssl.reports import image_figures
from fedssl.reports.page import Figure
from fedssl.seeding import torch_stream

BANK = 10_000  # training images that vote at most
MAPPED = 1_000
SHOWN_VIEWS = 6
QUERIES, NEIGHBOURS = 6, 6


@dataclass(frozen=True)
class RunImages:
    """Subsets of a run's training and test images, evenly spaced, with labels."""

    run: FinishedRun
    train: Images
    test: Images

    @classmethod
    def of(cls, run: FinishedRun, images: int) -> "RunImages":
        dataset = run.dataset
        if dataset.train.labels is None or dataset.test.labels is None:
            raise FedsslError("the dataset has no labels")
        return cls(run, _evenly(dataset.train, BANK), _evenly(dataset.test, images))

    @property
    def num_classes(self) -> int:
        return self.run.dataset.train.num_classes

    @property
    def class_names(self) -> list[str]:
        names = self.run.dataset.train.class_names
        return list(names) or [str(number) for number in range(self.num_classes)]

    # --- figures of the data

    def holdings(self, prefix: str) -> Figure:
        labels = self.run.dataset.train.labels
        assert labels is not None
        if max(int(held.max()) for held in self.run.partition.clients if len(held)) >= len(labels):
            raise FedsslError("partition.json names more images than the dataset has")
        counts = self.run.partition.class_counts(labels.numpy(), self.num_classes)
        return image_figures.holdings(prefix, counts, self.class_names)

    def views(self, prefix: str) -> Figure:
        """Two views by the run's own recipe, one image of each class as far as there is room."""
        chosen = _one_of_each(self.train, SHOWN_VIEWS)
        augmentation = self.run.config.augmentation
        recipe = RECIPES[augmentation.name](**augmentation.settings)
        first, second = two_views(chosen.pixels, recipe, torch_stream(self.run.config.run.seed, "report", "views"))
        view_1, view_2 = (view.mul(255).round().to(torch.uint8).numpy() for view in (first, second))
        return image_figures.views(prefix, chosen.pixels.numpy(), view_1, view_2, self._names_of(_labels(chosen)))

    # --- figures of the encoder

    def pca_map(self, prefix: str) -> Figure:
        points, shares = {}, []
        for name, features in self._mapped.items():
            coordinates, variance = principal_components(features)
            points[name] = _two_columns(coordinates).numpy()
            shares.append(f"{100 * float(variance.sum()):.0f} % for {name}")
        caption = (
            f"{len(self._mapped_classes):,} test images along the two directions in which their features vary most "
            f"(share of the variance shown: {', '.join(shares)})."
        )
        classes = self._mapped_classes.numpy()
        return image_figures.maps(prefix, "PCA", points, classes, self.class_names, caption, "component")

    def tsne_map(self, prefix: str) -> Figure:
        if len(self.test) < 5:
            raise FedsslError(f"{len(self.test)} test images are too few for t-SNE")
        points = {name: tsne(features).numpy() for name, features in self._mapped.items()}
        caption = (
            f"{len(self._mapped_classes):,} test images, arranged so that images with similar features lie together "
            "(perplexity 30). Only neighbourhoods mean something; sizes of and distances between clusters do not."
        )
        classes = self._mapped_classes.numpy()
        return image_figures.maps(prefix, "t-SNE", points, classes, self.class_names, caption, "t-SNE")

    def confusion(self, prefix: str) -> Figure:
        evaluation = self.run.config.evaluation
        train, test = self._features
        votes = {"k": evaluation.k, "temperature": evaluation.temperature, "num_classes": self.num_classes}
        named = knn_predictions(train, _labels(self.train), test, **votes)  # type: ignore[arg-type]
        matrix = torch.zeros(self.num_classes, self.num_classes, dtype=torch.int64)
        matrix.index_put_((_labels(self.test), named), torch.ones_like(named), accumulate=True)
        about = f"{self._whose}, k = {evaluation.k}, {len(self.test):,} test and {len(self.train):,} training images"
        return image_figures.confusion(prefix, matrix.numpy(), self.class_names, about)

    def neighbours(self, prefix: str) -> Figure:
        train, test = (nn.functional.normalize(features, dim=1) for features in self._features)
        chosen = _class_firsts(_labels(self.test), QUERIES)
        nearest = (test[chosen] @ train.T).topk(min(NEIGHBOURS, len(train)), dim=1).indices
        found = self.train.pixels[nearest]  # M x n x C x H x W
        names = [self._names_of(_labels(self.train)[row]) for row in nearest]
        queries = self.test.pixels[chosen].numpy()
        return image_figures.neighbours(
            prefix, queries, self._names_of(_labels(self.test)[chosen]), found.numpy(), names
        )

    # --- encoders and features

    @cached_property
    def _trained(self) -> tuple[nn.Module, str]:
        """The module whose features are looked at, and whose it is; where nothing is shared, the first client's."""
        if not self.run.summary.get("rounds"):
            raise FedsslError("no round was finished: there is no trained encoder")
        if UPDATE_RULES[self.run.config.update_rule.name].shares:
            return self._module(self.run.global_encoder()), "trained, global encoder"
        client, encoder = next(iter(self.run.client_encoders().items()))
        return self._module(encoder), f"trained, client {client}'s own encoder (nothing is shared)"

    @property
    def _whose(self) -> str:
        return self._trained[1]

    def _module(self, encoder: Encoder) -> nn.Module:
        config = self.run.config
        encoder.to(choose_device("auto"))
        module = encoder.backbone if config.evaluation.features == "backbone" else encoder
        if config.uploads.batchnorm != "average":  # then the global model has no statistics of its own
            return with_reestimated_batchnorm(module, self.train.pixels)
        return module

    @cached_property
    def _features(self) -> tuple[Tensor, Tensor]:
        module = self._trained[0]
        return compute_features(module, self.train.pixels), compute_features(module, self.test.pixels)

    @cached_property
    def _mapped(self) -> dict[str, Tensor]:
        """Features of the images on the maps, by encoder."""
        which = _spaced(len(self.test), MAPPED)
        random = compute_features(self._module(self.run.random_encoder()), self.test.pixels[which])
        return {"random init": random, self._whose: self._features[1][which]}

    @property
    def _mapped_classes(self) -> Tensor:
        return _labels(self.test)[_spaced(len(self.test), MAPPED)]

    def _names_of(self, labels: Tensor) -> list[str]:
        return [self.class_names[int(label)] for label in labels]


def _labels(images: Images) -> Tensor:
    assert images.labels is not None
    return images.labels


def _spaced(count: int, most: int) -> Tensor:
    """At most `most` numbers below `count`, evenly spaced."""
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).round().long()


def _evenly(images: Images, most: int) -> Images:
    return images if len(images) <= most else images.select(_spaced(len(images), most))


def _class_firsts(labels: Tensor, most: int) -> Tensor:
    """The number of the first image of each class, for the first `most` classes that occur."""
    present = torch.unique(labels)[:most]
    return torch.stack([(labels == label).nonzero()[0, 0] for label in present])


def _one_of_each(images: Images, most: int) -> Images:
    return images.select(_class_firsts(_labels(images), most))


def _two_columns(points: Tensor) -> Tensor:
    """A feature of one number has one component only."""
    return points if points.shape[1] == 2 else torch.cat([points, torch.zeros_like(points)], dim=1)
