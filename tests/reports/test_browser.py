"""A report in a real browser; `make check-report` runs these, and fails where there is none."""

import pytest

from fedssl.encoders.neighbours import find_neighbours, write_page
from fedssl.encoders.trained import open_encoder
from fedssl.experiment.experiment import load
from fedssl.reports.run_page import write_report
from scripts.check_report import Browser, problems
from tests.helpers.small import TINY
from tests.helpers.small_photos import train, write_photos

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    load("smoke", TINY).run(folder / "fedema")
    load("smoke+standalone", TINY).run(folder / "alone")
    write_report([folder / "fedema"], folder / "one.html")
    write_report([folder / "fedema", folder / "alone"], folder / "two.html")
    return folder


@pytest.mark.parametrize("name", ["one.html", "two.html"])
def test_nothing_is_wrong_with_a_report(browser, reports, name):
    assert problems(browser, reports / name) == []


def test_nothing_is_wrong_with_a_page_of_neighbours(browser, tmp_path):
    encoder = open_encoder(train(write_photos(tmp_path / "photos"), tmp_path / "run"))
    asked = [str(tmp_path / "photos" / "red" / "000.png"), str(tmp_path / "photos" / "green")]
    write_page(find_neighbours(encoder, asked, str(tmp_path / "photos"), 12), encoder, tmp_path / "page.html")
    assert problems(browser, tmp_path / "page.html") == []


def test_colours_follow_the_readers_choice(browser, reports):
    seen = {}
    line = "getComputedStyle(document.querySelector('#run1-loss svg path[style*=\"--s1\"]')).stroke"
    for scheme in ("light", "dark"):
        browser.open(reports / "one.html", scheme=scheme)
        seen[scheme] = browser.run("getComputedStyle(document.body).backgroundColor"), browser.run(line)
    assert seen["light"] == ("rgb(246, 247, 249)", "rgb(14, 61, 204)")
    assert seen["dark"] == ("rgb(15, 18, 22)", "rgb(107, 148, 247)")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("</body>", "<script>console.error('x')</script></body>", "console:"),
        ("</body>", "<script>nothing()</script></body>", "exception:"),
        ("</body>", "<img src='http://127.0.0.1:9/x.png' alt='x'></body>", "loads http://127.0.0.1:9/x.png"),
        ("</style>", "figure svg { display: none !important }</style>", "is not visible (0 x 0)"),
        ("</style>", "figure svg text { font-size: 7px !important }</style>", "has words of 7."),
        ("</style>", "main { width: 3000px; max-width: none !important }</style>", "scrolls sideways"),
        ("<summary>", "<summary tabindex='-1'>", "keyboard: Tab reaches"),
        ('class="skip"', 'class="skip" tabindex="-1"', "does not reach the skip link"),
        ("data:image/png;base64,iVBOR", "data:image/png;base64,xxxxx", "an image that cannot be shown"),
        ('role="img" aria-label="', 'role="img" data-label="', "without a text"),
    ],
)
def test_the_check_finds_what_it_is_for(browser, reports, tmp_path, old, new, complaint):
    html = (reports / "one.html").read_text()
    assert old in html
    (tmp_path / "bad.html").write_text(html.replace(old, new))
    found = problems(browser, tmp_path / "bad.html")
    assert any(complaint in line for line in found), found
