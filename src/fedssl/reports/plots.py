"""The drawings of a report: curves, heat maps and point clouds, from plain numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from fedssl.reports.svg import (
    ACCENT,
    GRID,
    INK,
    MUTED,
    ON_ACCENT,
    OTHER,
    SERIES,
    new_figure,
    plain,
    series_colour,
    to_svg,
)

Array = np.ndarray[Any, np.dtype[Any]]
MARKERS = "osD^vPX*"
MAX_LINES = SERIES  # more curves than colours become their median and spread
ROOM = (0.43, 0.21)  # inches: cells of a heat map that are so large have their number written in


@dataclass(frozen=True)
class Series:
    """A curve; None where nothing was measured."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    _: KW_ONLY
    joined: bool = True  # False: single points, where a line would tell of rounds that nobody measured
    level: float | None = None  # a dashed line to compare the curve with


@dataclass(frozen=True)
class Key:
    """An entry of a legend: which colour and which shape mean what."""

    label: str
    colour: str  # a CSS variable
    shape: str = "line"  # line, band, box, dot or ring


@dataclass(frozen=True)
class Drawing:
    """An <svg>, its legend and, of a map, where its points are, as shares of its width and height from the top left."""

    svg: str
    legend: tuple[Key, ...] = ()
    places: Array | None = None  # N x 2


def curves(
    name: str,
    alt: str,
    series: Sequence[Series],
    y_label: str,
    *,
    top: float | None = None,
    zero: bool = True,
    threshold: float | None = None,
) -> Drawing:
    """Curves over rounds, each with its own colour and marker; more than eight are shown by median and spread."""
    figure, axes = _over_rounds(y_label)
    if threshold is not None:
        axes.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    legend = _spread(axes, series) if len(series) > MAX_LINES else _lines(axes, series)
    if zero:
        axes.set_ylim(bottom=0)
    if top is not None:
        axes.set_ylim(top=top)
    return Drawing(to_svg(figure, name, alt), legend if len(series) > 1 else ())


def _lines(axes: Any, series: Sequence[Series]) -> tuple[Key, ...]:
    keys = []
    for number, one in enumerate(series):
        y = np.array([np.nan if value is None else value for value in one.y], float)
        known = np.isfinite(y)
        marker = MARKERS[number % len(MARKERS)] if known.sum() <= 25 else ""
        colour = series_colour(number)
        x = np.asarray(one.x, float)[known]
        if one.level is not None:
            axes.axhline(one.level, color=colour, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        if one.joined:
            axes.plot(x, y[known], color=colour, linewidth=1.6, marker=marker, markersize=3.6, markeredgewidth=0)
        else:
            axes.plot(x, y[known], "o", color=colour, markersize=5.5, markeredgewidth=0)
        keys.append(Key(one.label, f"--s{number + 1}", "line" if one.joined else "dot"))
    return tuple(keys)


def _spread(axes: Any, series: Sequence[Series]) -> tuple[Key, ...]:
    low, middle, high = spread(series)
    x = list(middle)
    axes.fill_between(x, list(low.values()), list(high.values()), color=series_colour(0), alpha=0.22, linewidth=0)
    axes.plot(x, list(middle.values()), color=series_colour(0), linewidth=1.8)
    return Key(f"median of {len(series)} clients", "--s1"), Key("the middle 80 % of them", "--s1", "band")


def spread(series: Sequence[Series]) -> tuple[dict[float, float], dict[float, float], dict[float, float]]:
    """For every x the 10th, 50th and 90th percentile over the curves that have a value there."""
    at: dict[float, list[float]] = {}
    for one in series:
        for x, y in zip(one.x, one.y, strict=True):
            if y is not None:
                at.setdefault(x, []).append(y)
    cut = {x: np.percentile(at[x], [10, 50, 90]) for x in sorted(at)}
    low, middle, high = ({x: float(values[part]) for x, values in cut.items()} for part in range(3))
    return low, middle, high


@dataclass(frozen=True)
class Swept:
    """A measure over the values of a setting, with its spread; None where nothing was measured."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    sd: Sequence[float]


def swept(name: str, alt: str, series: Sequence[Swept], x_label: str, y_label: str) -> Drawing:
    """Curves over a setting, ticks at its values; a bar through a point is one sd up and down."""
    figure, axes = _plain_axes(y_label, x_label)
    keys = []
    for number, one in enumerate(series):
        known = [place for place, y in enumerate(one.y) if y is not None]
        x, y, sd = ([values[place] for place in known] for values in (one.x, one.y, one.sd))
        options: dict[str, Any] = {"color": series_colour(number), "marker": MARKERS[number % len(MARKERS)]}
        axes.errorbar(x, y, yerr=sd if any(sd) else None, linewidth=1.6, markersize=4, markeredgewidth=0, **options)
        keys.append(Key(one.label, f"--s{number % SERIES + 1}"))
    ticks = sorted({x for one in series for x in one.x})
    if ticks[0] > 0 and ticks[-1] > 8 * ticks[0]:  # values that double would crowd at the left
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    return Drawing(to_svg(figure, name, alt), tuple(keys))


def bars(name: str, alt: str, x: Sequence[float], stacks: Mapping[str, Sequence[float]], y_label: str) -> Drawing:
    """Bars over rounds, the stacks on top of each other."""
    figure, axes = _over_rounds(y_label)
    axes.margins(x=0.02)
    base = np.zeros(len(x))
    keys = []
    for number, (label, values) in enumerate(stacks.items()):
        axes.bar(list(x), list(values), bottom=base, width=0.75, color=series_colour(number), linewidth=0)
        base = base + np.asarray(values, float)
        keys.append(Key(label, f"--s{number + 1}", "box"))
    return Drawing(to_svg(figure, name, alt), tuple(keys) if len(keys) > 1 else ())


def _over_rounds(y_label: str) -> tuple[Any, Any]:
    """Axes with rounds to the right; what is upward is written above, where it need not be read sideways."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _plain_axes(y_label, "round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    return figure, axes


def _plain_axes(y_label: str, x_label: str) -> tuple[Any, Any]:
    figure, axes = new_figure(4.8, 2.9)
    axes.set_title(y_label, loc="left", fontsize=9, color=MUTED, pad=8)
    axes.set_xlabel(x_label, fontsize=9, color=MUTED)
    return figure, axes


def heat_map(
    name: str,
    alt: str,
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str],
    *,
    floor: float = 0.0,
    digits: int = 0,
) -> Drawing:
    """A matrix in one hue, as strong as the value is above `floor`; numbers are written in when there is room."""
    size = (5.2, min(max(1.1 + 0.36 * len(values), 1.9), 5.2))
    figure, axes = matrix_figure(values, rows, columns, size, floor=floor, digits=digits)
    axes.set_ylabel(labels[0], fontsize=9, color=MUTED)
    axes.set_xlabel(labels[1], fontsize=9, color=MUTED)
    return Drawing(to_svg(figure, name, alt))


def matrix_figure(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    size: tuple[float, float],
    *,
    floor: float = 0.0,
    digits: int = 0,
    colours: tuple[str, str, str] = (INK, MUTED, ON_ACCENT),
) -> tuple[Any, Any]:
    """The heat map itself, before it becomes a file or part of a page; `colours`: of numbers, names, strong cells."""
    ink, muted, on_accent = colours
    height, width = values.shape
    figure, axes = new_figure(*size)
    axes.grid(visible=False)
    strength = (values - floor).clip(min=0) / max(float(values.max()) - floor, 1e-12)
    pixels = np.empty((height, width, 4))
    pixels[..., :3], pixels[..., 3] = ACCENT, 0.04 + 0.96 * strength
    axes.imshow(pixels, aspect="auto", interpolation="none")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    _name_ticks(axes, "y", rows, muted)
    _name_ticks(axes, "x", columns, muted)
    if size[0] >= width * ROOM[0] and size[1] >= height * ROOM[1]:
        for row, column in np.ndindex(height, width):
            colour = on_accent if strength[row, column] > 0.6 else ink
            if values[row, column] >= 0.5:
                text = f"{values[row, column]:,.{digits}f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    return figure, axes


def _name_ticks(axes: Any, axis: str, names: Sequence[str], colour: str) -> None:
    every = max(1, len(names) // 20)
    places = range(0, len(names), every)
    turned = axis == "x" and max(map(len, names), default=0) > 4
    options: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    getattr(axes, f"set_{axis}ticks")(list(places), [plain(names[place]) for place in places], color=colour, **options)


def point_cloud(name: str, alt: str, points: Array, classes: Array, names: Sequence[str], axis: str) -> Drawing:
    """A 2-D map, one colour per class: filled for the first eight, rings for the next eight, grey for any more."""
    figure, axes = new_figure(4.6, 3.6)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(True)
        axes.spines[side].set_color(GRID)
    axes.set_xlabel(f"{axis} 1", fontsize=9, color=MUTED)
    axes.set_ylabel(f"{axis} 2", fontsize=9, color=MUTED)
    for number in reversed(range(len(names))):
        chosen = points[classes == number]
        colour = series_colour(number) if number < 2 * SERIES else OTHER
        ring = SERIES <= number < 2 * SERIES
        face, edge = ("none", colour) if ring else (colour, "none")
        options: dict[str, Any] = {"markersize": 3.0 if ring else 3.4, "markeredgewidth": 0.9 if ring else 0}
        axes.plot(*chosen.T, "o", markerfacecolor=face, markeredgecolor=edge, alpha=0.85, **options)
    svg = to_svg(figure, name, alt)  # lays the axes out
    places = axes.transData.transform(points) / (figure.get_size_inches() * figure.dpi)
    return Drawing(svg, class_legend(names), np.stack([places[:, 0], 1 - places[:, 1]], axis=1))


def class_legend(names: Sequence[str]) -> tuple[Key, ...]:
    keys = [
        Key(name, f"--s{number % SERIES + 1}", "dot" if number < SERIES else "ring")
        for number, name in enumerate(names[: 2 * SERIES])
    ]
    others = len(names) - 2 * SERIES
    return (*keys, Key(f"{others} other classes", "--other", "dot")) if others > 0 else tuple(keys)
