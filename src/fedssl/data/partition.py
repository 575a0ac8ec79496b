"""How a training set is dealt out to K clients: equally, l classes per client, or by Dirichlet proportions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval

from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.core.names import client_title
from fedssl.core.registry import Registry
from fedssl.core.seeding import numpy_stream
from fedssl.core.settings import Count, Positive

PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

DIRICHLET_TRIES = 1000
NOBODYS_CLIENTS = 5


@dataclass(frozen=True)
class Owners:
    """Who holds each training image, where the data say so."""

    clients: IntArray  # the number of the client of each image
    names: tuple[str, ...]  # of all clients, also of one without images


@dataclass(frozen=True)
class Partition:
    """Which training images each client holds; no image is at two clients."""

    clients: tuple[IntArray, ...]  # sorted indices into the training set, disjoint
    unused: int  # images given to nobody, those held out for evaluation not counted
    _: KW_ONLY
    labelled: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # held out: at no client
    names: tuple[str, ...] = ()  # of the clients, where the data name them
    public: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # seen by everybody: at no client

    def title(self, client: int) -> str:
        return client_title(client, self.names)

    def sizes(self) -> list[int]:
        return [len(indices) for indices in self.clients]

    def class_counts(self, labels: IntArray, num_classes: int) -> IntArray:
        """Images of each class at each client, K x C."""
        return np.stack([np.bincount(labels[indices], minlength=num_classes) for indices in self.clients])

    def save(self, path: Path, name: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Write as JSON with the name and settings it was made by; a kill leaves the old file or the new one."""
        content = {
            "partition": name,
            "settings": dict(settings or {}),
            "unused": self.unused,
            "labelled": self.labelled.tolist(),
            "public": self.public.tolist(),
            "names": self.names,
            "clients": [indices.tolist() for indices in self.clients],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path) -> "Partition":
        try:
            content = json.loads(path.read_text())
            clients = tuple(np.array(indices, dtype=np.int64) for indices in content["clients"])
            unused = int(content["unused"])
            labelled = np.array(content.get("labelled", []), dtype=np.int64)
            public = np.array(content.get("public", []), dtype=np.int64)
            names = tuple(map(str, content.get("names", [])))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise FedsslError(f"{path} is not a readable partition ({error!r}): make it again") from None
        held_out = (labelled, public)
        everyone = np.concatenate([part.reshape(-1) for part in (*held_out, *clients)])
        if (
            any(part.ndim != 1 for part in (*held_out, *clients))
            or len(np.unique(everyone)) != len(everyone)
            or (everyone < 0).any()
        ):
            raise FedsslError(f"{path} gives an image to two clients or has negative image numbers: make it again")
        if names and len(names) != len(clients):
            raise FedsslError(f"{path} names {len(names)} of {len(clients)} clients: make it again")
        known = {"labelled": np.sort(labelled), "public": np.sort(public)}
        return cls(tuple(map(np.sort, clients)), unused, names=names, **known)


def iid(
    labels: IntArray | None,
    num_images: int,
    seed: int,
    _owners: Owners | None = None,
    *,
    num_clients: Count = 5,
    data_amount: PositiveFraction = 1.0,
) -> Partition:
    """Every client an equal random part; sizes differ by one image at most."""
    _check_clients(num_clients, num_images)
    order = numpy_stream(seed, "partition", "iid").permutation(num_images)
    return _finish(np.array_split(order, num_clients), labels, num_images, seed, data_amount)


def classes(
    labels: IntArray | None,
    num_images: int,
    seed: int,
    _owners: Owners | None = None,
    *,
    num_clients: Count = 5,
    classes_per_client: Count = 2,
    leftover: Literal["unused", "dealt"] = "unused",  # images of an uneven cut; dealt: some parts have one more
    data_amount: PositiveFraction = 1.0,
) -> Partition:
    """l classes per client: each class is cut into ceil(K·l/C) equal parts, a client gets l parts of different classes.

    Parts beyond K·l, and images of an uneven cut that are not dealt, go to nobody and are counted as unused.
    """
    labels = _need_labels("classes", labels)
    _check_clients(num_clients, num_images)
    num_classes = int(labels.max()) + 1
    shares = num_clients * classes_per_client
    if classes_per_client > num_classes:
        raise FedsslError(
            f"partition.classes_per_client is {classes_per_client} but the dataset has {num_classes} classes: lower it"
        )
    if shares < num_classes:
        raise FedsslError(
            f"partition.num_clients x partition.classes_per_client is {shares}, fewer than the {num_classes} classes: "
            "some class would be at no client; raise one of them"
        )
    parts = -(-shares // num_classes)  # ceil
    counts = np.bincount(labels, minlength=num_classes)
    if counts.min() < parts:
        raise FedsslError(
            f"class {counts.argmin()} has {counts.min()} images, too few to cut into {parts} parts: "
            "lower partition.num_clients or partition.classes_per_client"
        )
    stream = numpy_stream(seed, "partition", "classes")
    cut = np.array_split if leftover == "dealt" else _equal_parts
    cuts = [cut(stream.permutation(np.flatnonzero(labels == c)), parts) for c in range(num_classes)]
    holders = _deal(num_clients, classes_per_client, num_classes, parts, stream)
    clients = [np.concatenate([cuts[c].pop() for c in held]) for held in holders]
    return _finish(clients, labels, num_images, seed, data_amount)


def dirichlet(
    labels: IntArray | None,
    num_images: int,
    seed: int,
    _owners: Owners | None = None,
    *,
    num_clients: Count = 5,
    alpha: Positive = 0.5,
    min_images: Count = 2,
    data_amount: PositiveFraction = 1.0,
) -> Partition:
    """Each class is dealt out in proportions drawn from Dirichlet(alpha); small alpha: few classes per client.

    Drawn again (up to 1,000 times) until every client has at least `min_images` images.
    """
    labels = _need_labels("dirichlet", labels)
    _check_clients(num_clients, num_images)
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for attempt in range(DIRICHLET_TRIES):
        stream = numpy_stream(seed, "partition", "dirichlet", attempt)
        clients: list[list[IntArray]] = [[] for _ in range(num_clients)]
        for indices in members:
            shares = stream.dirichlet(np.full(num_clients, alpha))
            cuts = np.floor(np.cumsum(shares)[:-1] * len(indices) + 0.5).astype(np.int64)
            for client, part in zip(clients, np.split(stream.permutation(indices), cuts), strict=True):
                client.append(part)
        joined = [np.concatenate(parts) for parts in clients]
        if min(map(len, joined)) >= min_images:
            return _finish(joined, labels, num_images, seed, data_amount)
    raise FedsslError(
        f"partition.min_images = {min_images} was not reached by every client in {DIRICHLET_TRIES} draws of "
        f"Dirichlet({alpha}) for {num_clients} clients: lower partition.min_images or raise partition.alpha"
    )


def natural(
    labels: IntArray | None,
    num_images: int,
    seed: int,
    owners: Owners | None = None,
    *,
    num_clients: Count | None = None,
    data_amount: PositiveFraction = 1.0,
) -> Partition:
    """Every client what the data say it holds (silos, a manifest's clients); where they say nothing, as `iid`.

    `num_clients` is how many share images that belong to nobody (5 if not set). A client with a single image, from
    which nothing can be learnt, is none; one without images is kept, for they may be out of reach.
    """
    if owners is None:
        return iid(labels, num_images, seed, num_clients=num_clients or NOBODYS_CLIENTS, data_amount=data_amount)
    count = len(owners.names)
    if num_clients not in (None, count):
        raise FedsslError(
            f"partition.num_clients is {num_clients} but the data name {count} clients: leave it out, or deal their "
            'images out anew with partition.name = "iid"'
        )
    held = {name: np.flatnonzero(owners.clients == client) for client, name in enumerate(owners.names)}
    kept = {name: indices for name, indices in held.items() if len(indices) != 1}
    if not kept:
        raise FedsslError(f"each of the {count} clients that the data name has 1 image: at least 2 are needed")
    return replace(_finish(list(kept.values()), labels, num_images, seed, data_amount), names=tuple(kept))


# Each is called with labels, the number of images, the seed and the owners; what a kind does not need it ignores.
PARTITIONS: Registry[Callable[..., Partition]] = Registry(
    "partitions",
    "partition.name",
    {"iid": iid, "classes": classes, "dirichlet": dirichlet, "natural": natural},
)


def deal_out(
    deal: Callable[..., Partition],
    labels: IntArray | None,
    num_images: int,
    seed: int,
    labelled: IntArray,
    owners: Owners | None = None,
    public: IntArray | None = None,
) -> Partition:
    """What `deal`, a partition with its settings, makes of all images but the labelled and public ones: nobody's."""
    public = np.empty(0, np.int64) if public is None else public
    rest = np.setdiff1d(np.arange(num_images, dtype=np.int64), np.concatenate([labelled, public]))
    remaining = None if labels is None else labels[rest]
    of_rest = None if owners is None else replace(owners, clients=owners.clients[rest])
    dealt = deal(remaining, len(rest), seed, of_rest)
    return replace(dealt, clients=tuple(rest[indices] for indices in dealt.clients), labelled=labelled, public=public)


def _need_labels(name: str, labels: IntArray | None) -> IntArray:
    if labels is None:
        raise FedsslError(f'partition "{name}" needs labels and the dataset has none: use partition "iid"')
    return labels


def _check_clients(num_clients: int, num_images: int) -> None:
    if num_clients > num_images:
        raise FedsslError(f"partition.num_clients is {num_clients} but there are only {num_images} images: lower it")


def _equal_parts(indices: IntArray, parts: int) -> list[IntArray]:
    """Cut into equal parts; the remainder is left out."""
    size = len(indices) // parts
    return [indices[i * size : (i + 1) * size] for i in range(parts)]


def _deal(
    num_clients: int, per_client: int, num_classes: int, parts: int, stream: np.random.Generator
) -> list[IntArray]:
    """Which classes each client gets: `per_client` different ones, at random, so that the parts come out even.

    A class with as many parts left as there are clients left must go to this client and all after it. A class never has
    more, so each client can be served: those that must, then the rest at random.
    """
    remaining = np.full(num_classes, parts)
    surplus = num_classes * parts - num_clients * per_client
    remaining[stream.choice(num_classes, surplus, replace=False)] -= 1
    held: list[IntArray] = [np.empty(0, np.int64)] * num_clients
    for left, client in zip(range(num_clients, 0, -1), stream.permutation(num_clients), strict=True):
        must = np.flatnonzero(remaining == left)
        may = np.flatnonzero((remaining > 0) & (remaining < left))
        held[client] = np.concatenate([must, stream.choice(may, per_client - len(must), replace=False)])
        remaining[held[client]] -= 1
    return held


def _finish(
    clients: list[IntArray], labels: IntArray | None, num_images: int, seed: int, data_amount: float
) -> Partition:
    """Keep round(p·n_c) of each class of each client (without labels: of the whole), sort, and count what is unused."""
    kept = []
    for number, indices in enumerate(clients):
        if data_amount < 1 and len(indices):
            shuffled = numpy_stream(seed, "partition", "data amount", number).permutation(indices)
            kinds = np.zeros(len(shuffled)) if labels is None else labels[shuffled]
            groups = [shuffled[kinds == kind] for kind in np.unique(kinds)]
            indices = np.concatenate([group[: round(data_amount * len(group))] for group in groups])
            if not len(indices):
                raise FedsslError(
                    f"client {number} would have no images: raise partition.data_amount or lower partition.num_clients"
                )
        kept.append(np.sort(indices).astype(np.int64))
    return Partition(tuple(kept), num_images - sum(map(len, kept)))
