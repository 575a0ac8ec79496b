"""A real deployment in a real browser: `fedssl server --watch`, TLS, clients that are killed; `make check-report`."""

import json
import os
import re
import time

import pytest

from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.site_accuracy import at_sites
from fedssl.reports.run_page import write_report
from scripts.check_report import Browser, problems
from tests.helpers.deployed import LIMIT, Federation, kill, power_cut

pytestmark = pytest.mark.browser
ROW = "[...document.querySelectorAll('.clients tbody tr')].find(row => row.innerText.includes('{}'))?.innerText ?? ''"
TILE = "[...document.querySelectorAll('.tile')].find(tile => tile.innerText.includes('{}'))?.innerText ?? ''"
CELLS = """[...document.querySelectorAll('[aria-label="Accuracy at the sites"] tbody th')].map(one => one.innerText)"""
SETTINGS = {"local_training.epochs": 15, "evaluation.at_sites": True, "evaluation.every": 1}
SIZES = ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"))


def seen(browser, script, pattern):
    """What the page shows at last; it is never loaded again."""
    deadline = time.monotonic() + LIMIT
    while not (found := re.search(pattern, text := str(browser.run(script)), re.DOTALL)):
        assert time.monotonic() < deadline, f"{pattern!r} did not appear in {text!r}"
        time.sleep(0.2)
    return found


def url_of(federation):
    federation.wait("a page", lambda: "a page to watch: " in federation.output("server"))
    return re.search(r"a page to watch: (\S+)", federation.output("server"))[1]


def shoot(browser, url, name):
    """Screenshots for people: SHOTS names a folder for them."""
    if shots := os.environ.get("SHOTS"):
        for width, scheme in SIZES:
            browser.open(url, width=width, scheme=scheme)
            time.sleep(1.5)  # for the newest numbers
            browser.screenshot(f"{shots}/{name}-{scheme}-{width}.png")
        browser.open(url)
        browser.run("window.same = true")


def test_a_page_of_a_deployment_whose_client_is_killed_and_comes_back(tmp_path):
    with Federation(tmp_path, rounds=6, classes=("ill", "well")) as federation, Browser() as browser:
        server = federation.server("--watch", "0", **SETTINGS)
        url = url_of(federation)
        assert url.startswith("http://127.0.0.1:")
        browser.open(url)
        browser.run("window.same = true")
        seen(browser, ROW.format("hospital-b"), "away for")  # nobody has come yet
        clients = {name: federation.client(name) for name in federation.names}
        federation.wait("round 1", lambda: federation.done() >= 1)
        power_cut(clients["hospital-a"])
        seen(browser, TILE.format("Round"), "[1-5] of 6")
        seen(browser, TILE.format("At the sites"), r"\d %.*worst: client \d \(hospital-[ab]\)")
        first = int(seen(browser, ROW.format("hospital-a"), r"away for (\d+) s")[1])
        seen(browser, ROW.format("hospital-a"), f"away for (?!{first} s)")  # it counts on
        seen(browser, "document.querySelector('.doing').innerText", "for hospital-a to come")
        assert "away" not in browser.run(ROW.format("hospital-b"))
        assert server.poll() is None
        shoot(browser, url, "away")

        pid = federation.run / "flower/app.pid"
        before = pid.read_text()
        kill(int(before))
        federation.wait("another app", lambda: pid.exists() and pid.read_text() not in ("", before))
        seen(browser, "document.querySelector('.doing').innerText", "for hospital-a to come")  # the page outlives it
        seen(browser, ROW.format("hospital-a"), "away for")

        federation.client("hospital-a")
        seen(browser, ROW.format("hospital-a"), "at work for|delivered|here")
        seen(browser, TILE.format("Round"), "[2-6] of 6")
        assert server.wait(LIMIT) == 0, federation.story()
        seen(browser, "document.querySelector('#connection').innerText", "No answer since")  # the page ends with it
        assert browser.run("window.same"), "the page was never loaded again"
        failed = re.compile("ERR_CONNECTION_REFUSED|Failed to fetch")  # the server has ended, and its page with it
        assert [text for text in browser.complaints(url) if not failed.search(text)] == []

        rounds = [json.loads(line) for line in (federation.run / "rounds.jsonl").read_text().splitlines()]
        assert [[one["client"] for one in entry["at_sites"]["counts"]] for entry in rounds] == [[0, 1]] * 7
        assert federation.everything() == federation.in_one_process(**{"local_training.epochs": 15})
    check_report(federation.run, tmp_path / "report.html")


def check_report(run, path):
    """Accuracy of each site, the worst first."""
    sites = at_sites(RunRecord.read(run))
    assert len(sites) == 2
    write_report([run], path, images=0)
    with Browser() as browser:
        assert problems(browser, path) == []
        rows = browser.run(CELLS)
    assert [one["linear"].title for one in sites] == rows[: len(sites)]
