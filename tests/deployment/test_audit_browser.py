"""The page of a site's audit in a real browser; `make check-report` runs this."""

import pytest

from fedssl.deployment.audit import check_audit
from fedssl.deployment.audit_page import html_page
from scripts.check_report import OPEN_ALL, Browser
from tests.deployment.test_audit import evil_audit

pytestmark = pytest.mark.browser


def test_it_fits_a_phone_follows_dark_runs_no_code_and_loads_nothing(tmp_path):
    page = tmp_path / "audit.html"
    page.write_text(html_page(evil_audit(tmp_path), check_audit(tmp_path / "audit.jsonl")))
    colours = []
    with Browser() as browser:
        for width, scheme in ((1280, "light"), (1280, "dark"), (375, "light")):
            browser.open(page, width=width, scheme=scheme)
            browser.run(OPEN_ALL)
            assert browser.complaints() == []
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run("document.title") == "What left this site · fedssl"
            assert browser.run("document.querySelector('main dd.value').innerText") == "The chain holds, over 4 lines"
            colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        assert colours[0] == colours[2] != colours[1]
        assert browser.run("document.querySelectorAll('script, img').length") == 0
