"""Matplotlib figures as inline SVG whose colours follow the page: light, dark or printed, from one drawing."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = 8
LONGEST_NAME = 28  # of a client or class, as a label
# Stand-ins: matplotlib wants a colour, the page has variables. Each is replaced after drawing.
INK, MUTED, GRID, ON_ACCENT, OTHER = "#010a01", "#010a02", "#010a03", "#010a04", "#010a05"
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ON_ACCENT: "--on-accent", OTHER: "--other"}
VARIABLES |= {f"#010b{number:02x}": f"--s{number + 1}" for number in range(SERIES)}
ACCENT = (0x2A / 255, 0x78 / 255, 0xC8 / 255)  # of heat maps, as strong as the value; legible on both backgrounds


def series_colour(number: int) -> str:
    return f"#010b{number % SERIES:02x}"


def new_figure(width: float, height: float) -> tuple["Figure", "Axes"]:
    """A figure of this many inches with one quiet pair of axes: no box, only horizontal lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=0)
    axes.tick_params(axis="x", length=3)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def plain(name: str) -> str:
    """A user's name as a label: not too long, and no formula, which matplotlib would see between two dollar signs."""
    return (name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…").replace("$", r"\$")


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """A script that matplotlib's font lacks: a browser has it, and a picture shows boxes; either way no news."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def to_svg(figure: "Figure", name: str, alt: str) -> str:
    """The drawing as an <svg> element; `name` makes its ids unique in the page, `alt` says what is to be seen."""
    import matplotlib

    file = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}
    with matplotlib.rc_context(settings), without_glyph_warnings():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)  # the page's font, not matplotlib's
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL)  # it would rule the whole page
    svg = svg.replace(' transform="rotate(-0 ', ' data-flat="(').replace("\n", " ")
    svg = re.sub(r' data-flat="[^"]*"', "", re.sub(r"\s{2,}", " ", svg))
    svg = _with_shared_style(_with_own_ids(svg, name))
    return _with_alt(svg, alt).strip()


def _with_own_ids(svg: str, name: str) -> str:
    """Ids that something refers to get the figure's name, all others go."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)


def _with_shared_style(svg: str) -> str:
    """A thousand points of a class repeat their style a thousand times; once for the group is enough."""

    def share(group: re.Match[str]) -> str:
        styles = set(re.findall(r'<use [^>]*style="([^"]*)"', group[0]))
        if len(styles) != 1:
            return group[0]
        bare = re.sub(r'(<use [^>]*?) style="[^"]*"', r"\1", group[0])
        bare = re.sub(r'([xy])="(-?\d+\.\d{2})\d*"', r'\1="\2"', bare)
        return bare.replace("<g", f'<g style="{styles.pop()}"', 1)

    return re.sub(r"<g[^>]*>\s*(?:<use [^>]*/>\s*){3,}</g>", share, svg)


def _with_alt(svg: str, alt: str) -> str:
    from markupsafe import escape

    opening = re.match(r"<svg[^>]*>", svg)
    assert opening
    box = re.search(r'viewBox="([^"]+)"', opening[0])
    assert box
    head = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}"'
    return f'{head} role="img" aria-label="{escape(alt)}">' + svg[opening.end() :]
