import re
from importlib import resources

import numpy as np
import pytest

from fedssl.reports.page import Figure, Strip
from fedssl.reports.plots import Series, bars, class_legend, curves, heat_map, matrix_figure, point_cloud, spread
from fedssl.reports.svg import SERIES, VARIABLES

TEMPLATES = resources.files("fedssl.reports") / "templates"


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_curves_say_what_is_on_both_axes_and_take_the_colours_of_the_page():
    drawing = curves("plot", "it rises", [Series("a", [0, 1], [1, 2]), Series("b", [0, 1], [2, None])], "accuracy in %")
    assert {"accuracy in %", "round"} <= set(texts(drawing.svg))
    assert 'aria-label="it rises"' in drawing.svg
    assert "var(--s1)" in drawing.svg
    assert "var(--s2)" in drawing.svg
    assert not [colour for colour in VARIABLES if colour in drawing.svg], "a stand-in colour was left"
    assert "DejaVu" not in drawing.svg
    assert [(key.label, key.colour) for key in drawing.legend] == [("a", "--s1"), ("b", "--s2")]


def test_a_level_is_a_dashed_line_in_the_colour_of_its_curve():
    plain, levelled = (
        curves("plot", "", [Series("a", [0, 1], [1, 2]), Series("b", [0, 1], [2, 3], level=level)], "y").svg
        for level in (None, 1.5)
    )
    assert "stroke-dasharray" not in plain
    (style,) = re.findall(r'style="([^"]*stroke-dasharray[^"]*)"', levelled)
    assert "stroke: var(--s2)" in style


def test_labels_are_not_broken_inside_words():
    """`anywhere` breaks a word in a narrow column; `break-word` only one that is longer than its line."""
    assert "overflow-wrap: anywhere" not in (TEMPLATES / "style.css").read_text()
    strips = tuple(Strip(label, ()) for label in ("client 0 (northern-hospital)", "client 1"))
    assert Figure("id", "", "", strips=strips).longest_word == len("(northern-")


def test_ids_are_the_figures_own_and_every_reference_leads_to_one():
    svgs = [curves(name, "", [Series("a", [0, 1, 2], [1, 2, 3])], "y").svg for name in ("one", "two")]
    ids = [re.findall(r' id="([^"]+)"', svg) for svg in svgs]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg, own in zip(svgs, ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)) == set(own)


def test_alt_text_is_escaped():
    assert 'aria-label="&lt;b&gt; &amp; &#34;c&#34;"' in curves("p", '<b> & "c"', [Series("a", [0], [1])], "y").svg


def test_spread_over_many_clients():
    many = [Series(str(k), [1, 2], [float(k), None if k else 5.0]) for k in range(11)]
    low, middle, high = spread(many)
    assert (low[1], middle[1], high[1]) == (1.0, 5.0, 9.0)
    assert (low[2], middle[2], high[2]) == (5.0, 5.0, 5.0)
    assert [key.label for key in curves("p", "", many, "y").legend] == [
        "median of 11 clients",
        "the middle 80 % of them",
    ]


def test_heat_map_writes_its_numbers_and_names():
    drawing = heat_map("p", "alt", np.array([[0, 1200], [30, 0]]), ["r0", "r1"], ["cat", "dog"], ("client", "class"))
    shown = texts(drawing.svg)
    assert {"1,200", "30", "r0", "r1", "cat", "dog", "client", "class"} <= set(shown)
    assert "0" not in shown, "an empty cell stays empty"
    large = heat_map(
        "p", "alt", np.ones((30, 100)), [str(k) for k in range(30)], [str(k) for k in range(100)], ("", "")
    )
    assert "95" in texts(large.svg)
    assert "96" not in texts(large.svg), "names that would overlap are left out"


def test_point_cloud_draws_every_point_once_in_the_colour_of_its_class():
    stream = np.random.default_rng(0)
    classes = np.arange(90) % 9
    drawing = point_cloud("p", "alt", stream.normal(size=(90, 2)), classes, [f"c{k}" for k in range(9)], "t-SNE")
    assert drawing.svg.count("<use ") == 90
    for number in range(1, SERIES + 1):
        assert f"var(--s{number})" in drawing.svg
    assert [key.shape for key in drawing.legend] == ["dot"] * 8 + ["ring"]
    assert class_legend([str(k) for k in range(100)])[-1].label == "84 other classes"


def test_bars_have_a_legend_only_for_several_stacks():
    assert bars("p", "alt", [1, 2], {"x": [1.0, 2.0]}, "seconds per round").legend == ()
    both = bars("p", "alt", [1, 2], {"up": [1.0, 2.0], "down": [1.0, 1.0]}, "MB per round")
    assert [key.label for key in both.legend] == ["up", "down"]


# --- the palette ------------------------------------------------------------------------------------------------------

# Machado, Oliveira & Fernandes (2009), severity 1.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def palettes():
    """The series' colours and the card they are drawn on, of each :root in the style sheet."""
    css = (TEMPLATES / "style.css").read_text()
    for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL):
        colours = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]+)", block))
        yield [colours[f"--s{k}"] for k in range(1, SERIES + 1)], colours["--card"]


def linear(colour):
    colour = colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:])
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    x, y, z = np.cbrt(xyz / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(colour):
    return linear(colour) @ [0.2126, 0.7152, 0.0722] + 0.05


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_can_be_told_apart_by_everyone(sight):
    found = list(palettes())
    assert len(found) == 3, "light, dark, print"
    for colours, _ in found:
        seen = [lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in colours]
        distances = [np.linalg.norm(a - b) for number, a in enumerate(seen) for b in seen[:number]]
        assert min(distances) > 15


def test_colours_stand_out_from_the_background():
    for colours, card in palettes():
        for colour in colours:
            first, second = sorted([luminance(colour), luminance(card)])
            assert second / first >= 2.95, (colour, card)


def test_a_picture_and_a_page_show_one_heat_map_each_in_its_colours():
    """A page replaces its stand-ins for colours; a picture has none, and room for the numbers of more columns."""
    values, names = np.full((13, 13), 7), [f"c{number}" for number in range(13)]
    small, large = (5.2, 5.2), (10.0, 5.2)
    assert [len(matrix_figure(values, names, names, size)[1].texts) for size in (small, large)] == [0, 169]
    _, axes = matrix_figure(values, names, names, large, colours=("#111111", "#222222", "#ffffff"))
    assert {text.get_color() for text in axes.texts} == {"#ffffff"}, "every cell is as strong as it gets"
    assert {label.get_color() for label in axes.get_yticklabels()} == {"#222222"}
