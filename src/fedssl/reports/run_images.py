"""A finished run looked at through its images: features of the random and the trained encoder, and figures of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress, silent
from fedssl.data.dataset import Images
from fedssl.data.partition import Partition
from fedssl.evaluation.features import compute_features, with_reestimated_batchnorm
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.projection import principal_components, tsne
from fedssl.evaluation.score import confusion_matrix
from fedssl.experiment.finished_run import FinishedRun
from fedssl.networks.heads import Encoder
from fedssl.reports import image_figures
from fedssl.reports.client_views import client_views
from fedssl.reports.page import Figure

BANK = 10_000  # training images that vote at most
LOOKED_AT_BYTES = 400_000_000  # of training or of test images, at most: large ones are fewer
MAPPED = 1_000
QUERIES, NEIGHBOURS = 10, 6
ELSEWHERE = "the images stayed at their own sites"
UNLABELLED = "there are no labelled test images (data.eval_test)"


@dataclass(frozen=True)
class RunImages:
    """Subsets of a run's images, evenly spaced: those that vote and those that are named, if there are labels."""

    run: FinishedRun
    train: Images
    test: Images | None
    progress: Progress = silent

    @classmethod
    def of(cls, run: FinishedRun, images: int, progress: Progress = silent) -> "RunImages":
        if run.dataset.labelled is None:
            if not len(run.dataset.train):
                raise FedsslError(ELSEWHERE)
            return cls(run, _evenly(run.dataset.train, BANK), None, progress)
        train, test = run.dataset.labelled
        return cls(run, _evenly(train, BANK), _evenly(test, images), progress)

    @property
    def num_classes(self) -> int | None:
        return None if self.test is None else self.train.num_classes

    # --- figures of the data

    def holdings(self, prefix: str) -> Figure:
        train, partition = self.run.dataset.train, self._partition
        titles = [partition.title(client) for client in range(len(partition.clients))]
        if train.labels is None:
            return image_figures.sizes(prefix, partition.sizes(), titles)
        counts = partition.class_counts(train.labels.numpy(), train.num_classes)
        return image_figures.holdings(prefix, counts, titles, _class_names(train))

    def views(self, prefix: str) -> Figure:
        """Two views by the run's own recipe, for a few images of each client as far as there is room."""
        config, train, partition = self.run.config, self.run.dataset.train, self._partition
        recipe = config.augmentation.build()
        shown = client_views(train.pixels, partition, recipe, config.run.seed)
        titles = [partition.title(one.client) for one in shown]
        classes = [[""] * len(one.numbers) for one in shown]
        if train.labels is not None:
            names, labels = _class_names(train), train.labels
            classes = [[names[int(labels[number])] for number in one.numbers] for one in shown]
        return image_figures.views(prefix, shown, titles, classes, len(partition.clients))

    @property
    def _partition(self) -> Partition:
        partition = self.run.partition
        if not len(self.run.dataset.train):
            raise FedsslError(ELSEWHERE)
        if max(int(held.max()) for held in partition.clients if len(held)) >= len(self.run.dataset.train):
            raise FedsslError("partition.json names more images than the dataset has")
        return partition

    # --- figures of the encoder

    def pca_map(self, prefix: str) -> Figure:
        points, shares = {}, []
        for name, features in self._mapped.items():
            coordinates, variance = principal_components(features)
            points[name] = _two_columns(coordinates).numpy()
            shares.append(f"{100 * float(variance.sum()):.0f}\u00a0% for {name}")
        caption = (
            f"{len(self._mapped_classes):,} test images along the two directions in which their features vary most "
            f"(share of the variance shown: {', '.join(shares)})."
        )
        classes = self._mapped_classes.numpy()
        return image_figures.maps(prefix, "PCA", points, classes, _class_names(self.train), caption, "component")

    def tsne_map(self, prefix: str) -> Figure:
        if len(self._test) < 5:
            raise FedsslError(f"{len(self._test)} test images are too few for t-SNE")
        points = {name: tsne(features).numpy() for name, features in self._mapped.items()}
        caption = (
            f"{len(self._mapped_classes):,} test images, arranged so that images with similar features lie together "
            "(perplexity 30). Only neighbourhoods mean something; sizes of and distances between clusters do not."
        )
        classes = self._mapped_classes.numpy()
        return image_figures.maps(prefix, "t-SNE", points, classes, _class_names(self.train), caption, "t-SNE")

    @property
    def sheet(self) -> str:
        """The images that the maps show when one points at their dots."""
        return image_figures.sheet(self._test.pixels[_spaced(len(self._test), MAPPED)].numpy())

    def confusion(self, prefix: str) -> Figure:
        evaluation, test, count = self.run.config.evaluation, self._test, self.train.num_classes
        votes = {"k": evaluation.k, "temperature": evaluation.temperature, "num_classes": count}
        named = knn_predictions(self._train_features, _labels(self.train), self._test_features, **votes)  # type: ignore[arg-type]
        matrix = confusion_matrix(_labels(test), named, count)
        about = f"{self._owner}, k = {evaluation.k}, {len(test):,} test and {len(self.train):,} training images"
        return image_figures.confusion(prefix, matrix.numpy(), _class_names(self.train), about)

    def neighbours(self, prefix: str) -> Figure:
        """Training images most like some test images; without labels, most like some of the training images."""
        bank = nn.functional.normalize(self._train_features, dim=1)
        if self.test is None:
            chosen = _spaced(len(bank), QUERIES)
            nearest = (bank[chosen] @ bank.T).topk(min(NEIGHBOURS + 1, len(bank)), dim=1).indices[:, 1:]  # 0: itself
            queries, matches = self.train.pixels[chosen], self.train.pixels[nearest]
            return image_figures.lookalikes(prefix, queries.numpy(), matches.numpy())
        queries, count = nn.functional.normalize(self._test_features, dim=1), min(NEIGHBOURS, len(bank))
        nearest = torch.cat([(some @ bank.T).topk(count, dim=1).indices for some in torch.split(queries, 1_000)])
        voters, wanted = _labels(self.train), _labels(self.test)
        same = (voters[nearest] == wanted[:, None]).float().mean()
        by_chance = (torch.bincount(voters, minlength=self.train.num_classes) / len(voters))[wanted].mean()
        chosen = _class_firsts(wanted, QUERIES)
        matches = self.train.pixels[nearest[chosen]]  # classes x n x C x H x W
        names = [self._names_of(voters[row]) for row in nearest[chosen]]
        of_queries, shown = self._names_of(wanted[chosen]), self.test.pixels[chosen]
        share = (
            f"Of the neighbours of all {len(self.test):,} test images here, {100 * float(same):.0f}\u00a0% are; "
            f"by chance {100 * float(by_chance):.0f}\u00a0% would be."
        )
        return image_figures.neighbours(prefix, shown.numpy(), of_queries, matches.numpy(), names, share)

    # --- encoders and features

    @cached_property
    def _trained(self) -> tuple[nn.Module, str]:
        """The module whose features are looked at, and whose it is; where nothing is shared, the first client's."""
        if not self.run.summary.get("rounds"):
            raise FedsslError("no round was finished: there is no trained encoder")
        if self.run.config.update_rule.factory.shares:
            return self._module(self.run.global_encoder()), "trained, global encoder"
        client = next(iter(self.run.client_rounds()))
        title = self.run.partition.title(client)
        return self._module(self.run.client_encoder(client)), f"trained, own encoder of {title} (nothing is shared)"

    @property
    def _owner(self) -> str:
        return self._trained[1]

    def _module(self, encoder: Encoder) -> nn.Module:
        config = self.run.config
        encoder.to(choose_device("auto"))
        module = encoder.backbone if config.evaluation.features == "backbone" else encoder
        if not config.uploads.shares_statistics:
            return with_reestimated_batchnorm(module, self.train.pixels)
        return module

    @property
    def _test(self) -> Images:
        if self.test is None:
            raise FedsslError(UNLABELLED)
        return self.test

    @cached_property
    def _train_features(self) -> Tensor:
        return self._features(self._trained[0], self.train.pixels, "training images")

    @cached_property
    def _test_features(self) -> Tensor:
        return self._features(self._trained[0], self._test.pixels, "test images")

    def _features(self, encoder: nn.Module, pixels: Tensor, what: str) -> Tensor:
        return compute_features(encoder, pixels, progress=self.progress, text=f"features of {what}")

    @cached_property
    def _mapped(self) -> dict[str, Tensor]:
        """Features of the images on the maps, by encoder."""
        trained, owner = self._test_features, self._owner
        which = _spaced(len(self._test), MAPPED)
        random = compute_features(self._module(self.run.random_encoder()), self._test.pixels[which])
        return {"random init": random, owner: trained[which]}

    @property
    def _mapped_classes(self) -> Tensor:
        return _labels(self._test)[_spaced(len(self._test), MAPPED)]

    def _names_of(self, labels: Tensor) -> list[str]:
        names = _class_names(self.train)
        return [names[int(label)] for label in labels]


def _class_names(images: Images) -> list[str]:
    return list(images.class_names) or [str(number) for number in range(images.num_classes)]


def _labels(images: Images) -> Tensor:
    assert images.labels is not None
    return images.labels


def _spaced(count: int, most: int) -> Tensor:
    """At most `most` numbers below `count`, evenly spaced."""
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).round().long()


def _evenly(images: Images, most: int) -> Images:
    most = min(most, max(1, LOOKED_AT_BYTES // images.pixels[:1].numel()))
    return images if len(images) <= most else images.select(_spaced(len(images), most))


def _class_firsts(labels: Tensor, most: int) -> Tensor:
    """The number of the first image of each class, for the first `most` classes that occur."""
    present = torch.unique(labels)[:most]
    return torch.stack([(labels == label).nonzero()[0, 0] for label in present])


def _two_columns(points: Tensor) -> Tensor:
    """A feature of one number has one component only."""
    return points if points.shape[1] == 2 else torch.cat([points, torch.zeros_like(points)], dim=1)
