"""`fedssl neighbours`: the images of a folder that an encoder finds most like some images, as one HTML page."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch
from torch import Tensor, nn

from fedssl import __version__
from fedssl.core.errors import FedsslError
from fedssl.core.files import write_atomically
from fedssl.core.progress import Progress, silent
from fedssl.data.own.found import shortened
from fedssl.encoders.embed import ImageReader, embed, in_short
from fedssl.encoders.trained import TrainedEncoder
from fedssl.reports.image_figures import png_uri
from fedssl.reports.page import Figure, FigurePage, Strip, Thumb, render


@dataclass(frozen=True, order=True)
class Neighbour:
    """An image and how like the query it is: the cosine of their features, 1 for the same direction."""

    similarity: float
    order: int  # of finding, negative: of two that are as similar the first one found counts more
    name: str
    uri: str


@dataclass(frozen=True)
class Query:
    """An image that was asked about, and what is most like it, the most similar first."""

    name: str
    uri: str
    neighbours: list[Neighbour]
    copies: list[str]  # files with the same bytes, which are no finding


@dataclass(frozen=True)
class Neighbourhood:
    queries: list[Query]
    searched: int
    reader: ImageReader


def find_neighbours(
    encoder: TrainedEncoder, images: Sequence[str], place: str, count: int, progress: Progress = silent
) -> Neighbourhood:
    """Goes through the folder once; of its images only the nearest so far are kept."""
    queried = ImageReader(images, encoder.decoding)
    batches = list(embed(encoder.model.backbone, queried))
    if queried.refused or not batches:
        raise FedsslError(f"{', '.join(images)}: not every image can be used{in_short(queried.refused)}")
    names = [name for batch in batches for name in batch.names]
    digests = [digest for batch in batches for digest in batch.sha256]
    features = _normalised(torch.cat([batch.outputs for batch in batches]))
    best: list[list[Neighbour]] = [[] for _ in names]
    copies: list[list[str]] = [[] for _ in names]
    reader, searched = ImageReader([place], encoder.decoding, progress), 0
    for batch in embed(encoder.model.backbone, reader):
        similar = features @ _normalised(batch.outputs).T
        for number, digest in enumerate(digests):
            same = [place for place, its in enumerate(batch.sha256) if its == digest]
            copies[number] += [batch.names[place] for place in same]
            similar[number, same] = -torch.inf
            near = similar[number].topk(min(count, len(batch.names)))
            new = [
                Neighbour(float(value), -(searched + place), batch.names[place], png_uri(batch.pixels[place].numpy()))
                for value, place in zip(near.values, near.indices.tolist(), strict=True)
                if value > -torch.inf
            ]
            best[number] = heapq.nlargest(count, [*best[number], *new])
        searched += len(batch.names)
    if not any(best):
        raise FedsslError(f"--in {place}: no other image there can be used{in_short(reader.refused)}")
    pixels = torch.cat([batch.pixels for batch in batches]).numpy()
    queries = [Query(*one) for one in zip(names, map(png_uri, pixels), best, copies, strict=True)]
    return Neighbourhood(queries, searched, reader)


def _normalised(features: Tensor) -> Tensor:
    return nn.functional.normalize(features, dim=1)


def write_page(neighbourhood: Neighbourhood, encoder: TrainedEncoder, path: Path) -> None:
    """A self-contained HTML file."""
    about, count = encoder.about, len(neighbourhood.queries)
    story = [
        f"The {neighbourhood.searched:,} images of {shortened(neighbourhood.reader.places[0])} were compared with "
        f"{count} image{'s' if count > 1 else ''} by the {encoder.owner} encoder "
        f"({about['method']} with {about['update_rule']}, round {about['round']}). Below each image stands the cosine "
        "of its features with those of the image asked about: 1 is the most that it can be."
    ]
    if neighbourhood.reader.refused:
        story.append(f"Some files cannot be used{in_short(neighbourhood.reader.refused)}.")
    place = neighbourhood.reader.places[0]
    figures = [_figure(number, query, place) for number, query in enumerate(neighbourhood.queries)]
    title = f"Images most like {PurePath(neighbourhood.queries[0].name).name}" + (" and others" if count > 1 else "")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(FigurePage(title, story, figures, __version__)))


def _figure(number: int, query: Query, folder: str) -> Figure:
    names = [_below(one.name, folder) for one in query.neighbours]
    thumbs = [
        Thumb(one.uri, f"neighbour {place}: {name}", f"{one.similarity:.3f} {shortened(name, 60)}")
        for place, (one, name) in enumerate(zip(query.neighbours, names, strict=True), 1)
    ]
    first = Thumb(query.uri, f"the image asked about: {query.name}", "asked about", "query")
    caption = "First the image asked about, then the others, the most similar first."
    if query.copies:
        listed = ", ".join(shortened(_below(name, folder)) for name in query.copies[:3])
        caption += f" Left out, as the same file: {listed}{' and others' if len(query.copies) > 3 else ''}."
    return Figure(f"query{number}", shortened(query.name), caption, strips=(Strip("", (first, *thumbs)),), wide=True)


def _below(name: str, folder: str) -> str:
    """A name without the folder that was searched, which the page tells once."""
    return name.removeprefix(folder.rstrip("/") + "/")
