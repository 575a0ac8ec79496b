"""Pictures of who holds what, as PNG files: a heat map of clients and classes, and a sheet of augmented views."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.core.files import replacing
from fedssl.reports.client_views import ClientViews
from fedssl.reports.svg import plain, without_glyph_warnings

Array = np.ndarray[Any, np.dtype[Any]]
INK, MUTED, ACCENT, PAPER = "#1c2430", "#5b6675", "#2a78c8", "#ffffff"
DOTS = 160  # an inch
MOST_WRITTEN = 400  # cells with their number written in


def holdings_picture(path: Path, counts: Array, clients: Sequence[str], classes: Sequence[str]) -> None:
    """Images of each class at each client, K x C; the darker, the more."""
    title = "Training images by client and class" if counts.shape[1] > 1 else "Training images by client"
    _heat_map(path, counts, clients, classes, title)


def confusion_picture(path: Path, counts: Array, classes: Sequence[str], right: str) -> None:
    """Test images by true class (rows) and named class (columns)."""
    _heat_map(path, counts, classes, classes, f"True class (rows) and named class: {right}")


def _heat_map(path: Path, counts: Array, row_names: Sequence[str], column_names: Sequence[str], title: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    rows, columns = counts.shape
    longest = max(map(len, map(plain, row_names)))
    size = (min(1.4 + 0.085 * longest + 0.62 * columns, 16), min(1.5 + 0.34 * rows, 20))
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("", ["#f1f6fc", ACCENT, "#123a66"])
    axes.imshow(counts, cmap=colours, vmin=0, aspect="auto", interpolation="none")
    _ticks(axes.yaxis, row_names, 40)
    _ticks(axes.xaxis, column_names, 40)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=1.2 if counts.size <= 10 * MOST_WRITTEN else 0)
    axes.tick_params(which="minor", length=0)
    if columns > 1 and max(map(len, map(plain, column_names))) > 5:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    if counts.size <= MOST_WRITTEN:
        for row, column in np.ndindex(rows, columns):
            colour = PAPER if counts[row, column] > 0.45 * counts.max() else INK
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=8, color=colour)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11, color=INK)
    _save(figure, path)


def views_picture(path: Path, shown: Sequence[ClientViews], titles: Sequence[str], num_clients: int) -> None:
    """One row per client: some of its images, and beside each the two views of it that training would see."""
    from matplotlib.figure import Figure

    each = max(len(one.numbers) for one in shown)
    height = 0.8 + 1.12 * len(shown)  # inches
    figure = Figure(figsize=(1.6 + 3.05 * each, height), facecolor=PAPER)
    widths = [1.45, *([1, 1, 1, 0.14] * each)]  # the title, then image, view, view and a gap
    edges = {"left": 0.015, "right": 0.995, "bottom": 0.1 / height, "top": 1 - 0.65 / height}
    grid = figure.add_gridspec(len(shown), len(widths), width_ratios=widths, wspace=0.05, hspace=0.12, **edges)
    for row, (one, title) in enumerate(zip(shown, titles, strict=True)):
        cell = figure.add_subplot(grid[row, 0])
        cell.axis("off")
        cell.text(0, 0.5, _wrapped(title), va="center", fontsize=8.5, color=INK)
        for number in range(len(one.numbers)):
            for place, images in enumerate((one.originals, one.first, one.second)):
                axes = figure.add_subplot(grid[row, 1 + 4 * number + place])
                axes.axis("off")
                axes.imshow(_displayable(images[number]), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                if row == 0:
                    axes.set_title(("image", "view 1", "view 2")[place], fontsize=8, color=MUTED, pad=3)
    which = "each client" if len(shown) == num_clients else f"{len(shown)} of {num_clients} clients"
    title = f"Images of {which}, and two augmented views of each image"
    figure.suptitle(title, x=0.015, y=1 - 0.1 / height, ha="left", va="top", fontsize=11, color=INK)
    _save(figure, path)


def _displayable(pixels: Array) -> Array:
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)


def _ticks(axis: Any, names: Sequence[str], most: int) -> None:
    places = range(0, len(names), -(-len(names) // most))
    axis.set_ticks(list(places), [plain(names[place]) for place in places])


def _wrapped(title: str) -> str:
    return plain(title).replace(" (", "\n(")


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as unfinished, without_glyph_warnings():
        figure.savefig(unfinished, format="png", dpi=DOTS)
