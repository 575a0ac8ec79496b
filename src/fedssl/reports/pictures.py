"""Pictures of who holds what, as PNG files: a heat map of clients and classes, and a sheet of augmented views."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.core.files import replacing
from fedssl.reports.client_views import ClientViews
from fedssl.reports.plots import Array, matrix_figure
from fedssl.reports.svg import plain, without_glyph_warnings

INK, MUTED, PAPER = "#1c2430", "#5b6675", "#ffffff"
DOTS = 160  # an inch


def holdings_picture(path: Path, counts: Array, clients: Sequence[str], classes: Sequence[str]) -> None:
    """Images of each class at each client, K x C; the darker, the more."""
    title = "Training images by client and class" if counts.shape[1] > 1 else "Training images by client"
    _heat_map(path, counts, clients, classes, title)


def confusion_picture(path: Path, counts: Array, classes: Sequence[str], right: str) -> None:
    """Test images by true class (rows) and named class (columns)."""
    _heat_map(path, counts, classes, classes, f"True class (rows) and named class: {right}")


def _heat_map(path: Path, counts: Array, row_names: Sequence[str], column_names: Sequence[str], title: str) -> None:
    rows, columns = counts.shape
    longest = max(map(len, map(plain, row_names)))
    size = (min(1.4 + 0.085 * longest + 0.62 * columns, 16), min(1.5 + 0.34 * rows, 20))
    figure, _ = matrix_figure(counts, row_names, column_names, size, colours=(INK, MUTED, PAPER))
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


def _wrapped(title: str) -> str:
    return plain(title).replace(" (", "\n(")


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as unfinished, without_glyph_warnings():
        figure.savefig(unfinished, format="png", dpi=DOTS)
