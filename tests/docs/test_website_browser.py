"""The website as a reader sees it: every page on a desktop and on a phone, light and dark, and its search."""

import subprocess
import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from scripts.check_report import Browser

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
LOOKS = [(1280, "light"), (375, "dark")]
SEARCH = """(() => { const box = document.querySelector(".md-search__input"); box.focus(); box.value = "roster";
  box.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true})); })()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(address, names of pages) of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("website")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sorted(path.name for path in folder.glob("*.html"))
        server.shutdown()


def test_every_page_fits_its_window_and_loads_nothing_from_elsewhere(site):
    address, pages = site
    assert len(pages) > 25
    problems = []
    with Browser() as browser:
        for page in pages:
            for width, scheme in LOOKS:
                browser.open(f"{address}/{page}", width, scheme=scheme)
                found = browser.complaints(address)
                if browser.run("document.documentElement.scrollWidth") > width:
                    found.append("scrolls sideways")
                shown = browser.run("document.body.dataset.mdColorScheme")
                if shown != {"light": "default", "dark": "slate"}[scheme]:
                    found.append(f"is shown {shown}")
                problems += [f"{page}, {width}, {scheme}: {text}" for text in found]
    assert problems == []


def test_search_finds_pages(site):
    address, _ = site
    with Browser() as browser:
        browser.open(f"{address}/index.html")
        deadline, hits = time.monotonic() + 60, []
        while not hits and time.monotonic() < deadline:
            browser.run(SEARCH)
            time.sleep(0.2)
            hits = browser.run("[...document.querySelectorAll('.md-search-result__link')].map(link => link.pathname)")
    assert "/secure-aggregation.html" in hits
