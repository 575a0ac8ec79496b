"""The figures that need images and features: who holds what, views, maps of features, confusion, neighbours."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from fedssl.reports.client_views import ClientViews
from fedssl.reports.page import Figure, Panel, Spot, Strip, Thumb
from fedssl.reports.plots import Array, class_legend, heat_map, point_cloud

VIEWED = 2  # images of each client, to fit beside another figure
THUMB_PIXELS = 96  # as they are shown; larger ones would only make the file large
SPOTS, COLUMNS, SPOT_PIXELS = 400, 20, 32  # images on a map that are shown when pointed at: some 0.3 MB in all


def holdings(prefix: str, counts: Array, titles: Sequence[str], names: Sequence[str]) -> Figure:
    """counts: images of each class at each client, K x C."""
    clients, classes = counts.shape
    held = (counts > 0).sum(axis=1)
    most = f"{held.min()} to {held.max()}" if held.min() != held.max() else f"{held[0]}"
    alt = f"images of each of {classes} classes at each of {clients} clients; a client holds {most} classes"
    drawing = heat_map(f"{prefix}-holdings-plot", alt, counts, titles, names, ("", "class"))
    caption = f"Training images by client and class, {counts.max():,} at most. A client holds {most} classes."
    return Figure.of(f"{prefix}-holdings", "Who holds what", caption, drawing)


def sizes(prefix: str, counts: Sequence[int], titles: Sequence[str]) -> Figure:
    """Images of each client, where they have no classes."""
    alt = f"{sum(counts):,} images at {len(counts)} clients, {min(counts):,} to {max(counts):,} each"
    column = np.array(counts).reshape(-1, 1)
    drawing = heat_map(f"{prefix}-holdings-plot", alt, column, titles, ["images"], ("", ""))
    caption = f"Training images by client, {min(counts):,} to {max(counts):,}. They have no labels."
    return Figure.of(f"{prefix}-holdings", "Who holds what", caption, drawing)


def confusion(prefix: str, matrix: Array, names: Sequence[str], about: str) -> Figure:
    """matrix: counts, true class x named class."""
    shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    right = 100 * np.trace(matrix) / max(matrix.sum(), 1)
    worst = matrix * (1 - np.eye(len(matrix)))
    true, named = divmod(int(worst.argmax()), len(matrix))
    often = f" Most often confused: {names[true]} named {names[named]}." if worst.max() > 0 else ""
    alt = f"confusion matrix of {len(names)} classes; {right:.1f} % are classified correctly"
    drawing = heat_map(f"{prefix}-confusion-plot", alt, shares, names, names, ("true class", "named by kNN"))
    caption = f"In % of the images of each true class. {right:.1f}\u00a0% are classified correctly ({about}).{often}"
    return Figure.of(f"{prefix}-confusion", "Which classes are confused", caption, drawing)


def maps(
    prefix: str, kind: str, points: dict[str, Array], classes: Array, names: Sequence[str], caption: str, axis: str
) -> Figure:
    """points: coordinates under the name of the encoder that gave them, random init first."""
    panels, shown = [], _spots(len(classes))
    for number, (heading, where) in enumerate(points.items()):
        alt = f"{kind} map of {len(where)} test images, {heading}, coloured by class"
        drawing = point_cloud(f"{prefix}-{axis.lower()[:2]}{number}-plot", alt, where, classes, names, axis)
        assert drawing.places is not None
        spots = [
            Spot(
                left=f"{left:.1f}",
                top=f"{top:.1f}",
                column=place % COLUMNS,
                row=place // COLUMNS,
                label=names[int(label)],
            )
            for place, (label, (left, top)) in enumerate(zip(classes[shown], 100 * drawing.places[shown], strict=True))
        ]
        panels.append(Panel(heading, drawing.svg, tuple(spots)))
    legend = class_legend(names)
    identifier = f"{prefix}-map-{kind.lower().replace('-', '')}"
    some = "a dot" if len(shown) == len(classes) else f"one of {len(shown)} of the dots"
    caption += f" Point at {some} to see its image."
    return Figure(
        identifier, f"Test images in feature space, {kind}", caption, panels=tuple(panels), legend=legend, wide=True
    )


def _spots(count: int) -> Array:
    """Which of the images on a map can be pointed at: evenly spaced."""
    return np.linspace(0, count - 1, min(count, SPOTS)).round().astype(int)


def sheet(pixels: Array) -> str:
    """The images of the spots side by side, uint8 N x C x H x W, as a data: address."""
    shown = pixels[_spots(len(pixels))]
    rows = -(-len(shown) // COLUMNS)
    whole = Image.new("RGB", (COLUMNS * SPOT_PIXELS, rows * SPOT_PIXELS))
    for place, one in enumerate(shown):
        picture = _picture(one).convert("RGB").resize((SPOT_PIXELS, SPOT_PIXELS))
        whole.paste(picture, (place % COLUMNS * SPOT_PIXELS, place // COLUMNS * SPOT_PIXELS))
    return _uri(whole, "JPEG", quality=80)


def views(
    prefix: str,
    shown: Sequence[ClientViews],
    titles: Sequence[str],
    classes: Sequence[Sequence[str]],
    num_clients: int,
) -> Figure:
    """A row of images and views for each client that is shown, under its title; classes: of its images."""
    strips = []
    for one, title, names in zip(shown, titles, classes, strict=True):
        thumbs = []
        images = list(zip(one.originals, one.first, one.second, names, strict=True))
        for image, first, second, name in images[:VIEWED]:
            thumbs.append(Thumb(png_uri(image), f"image of {title} {name}".strip(), name or "image", "start"))
            thumbs += [Thumb(png_uri(view), f"view {k} of it", f"view {k}") for k, view in ((1, first), (2, second))]
        strips.append(Strip(title, tuple(thumbs)))
    some = f" The first {len(shown)} of {num_clients} clients are shown." if num_clients > len(shown) else ""
    caption = (
        "The task of pre-training: the encoder must find the two views of an image alike. Labels are not used." + some
    )
    return Figure(f"{prefix}-views", "What each client trains on", caption, strips=tuple(strips))


def neighbours(
    prefix: str,
    queries: Array,
    query_names: Sequence[str],
    matches: Array,
    match_names: Sequence[Sequence[str]],
    overall: str,
) -> Figure:
    """queries: M test images; matches: M x n training images, the most similar first; overall: a sentence on all."""
    strips = []
    for query, name, images, classes in zip(queries, query_names, matches, match_names, strict=True):
        thumbs = [Thumb(png_uri(query), f"test image, {name}", name, "query")]
        for pixels, its in zip(images, classes, strict=True):
            mark = "same" if its == name else "other"
            relation = "same class" if its == name else "another class"
            thumbs.append(Thumb(png_uri(pixels), f"neighbour, {its}, {relation}", its, mark))
        strips.append(Strip("", tuple(thumbs)))
    same = sum(its == name for name, row in zip(query_names, match_names, strict=True) for its in row)
    total = sum(map(len, match_names))
    caption = (
        "Left, the first test image of each class; right, the training images whose features are most similar. Solid "
        f"frame: same class; dashed: another. {same} of these {total} are of the same class. {overall}"
    )
    return Figure(f"{prefix}-neighbours", "Nearest neighbours", caption, strips=tuple(strips))


def lookalikes(prefix: str, queries: Array, matches: Array) -> Figure:
    """queries: M training images; matches: M x n others, the most similar first. Nobody knows their classes."""
    strips = [
        Strip(
            "",
            (
                Thumb(png_uri(query), "training image", "image", "query"),
                *(Thumb(png_uri(pixels), f"{place}. neighbour", f"{place}.") for place, pixels in enumerate(images, 1)),
            ),
        )
        for query, images in zip(queries, matches, strict=True)
    ]
    caption = "Left, a training image; right, the others whose features are most similar. There are no labels."
    return Figure(f"{prefix}-neighbours", "Nearest neighbours", caption, strips=tuple(strips))


def png_uri(pixels: Array) -> str:
    """A uint8 image C x H x W as a data: address."""
    picture = _picture(pixels)
    picture.thumbnail((THUMB_PIXELS, THUMB_PIXELS))
    return _uri(picture, "PNG")


def _picture(pixels: Array) -> Image.Image:
    """Of other than three channels the first, in grey."""
    return Image.fromarray(pixels[0] if len(pixels) != 3 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _uri(picture: Image.Image, form: str, **options: int) -> str:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return f"data:image/{form.lower()};base64," + base64.b64encode(file.getvalue()).decode()
