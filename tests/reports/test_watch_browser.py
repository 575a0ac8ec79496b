"""The page to watch in a real browser while a run goes on: values change without a reload, who is killed is away."""

import json
import threading
import time

import pytest

from fedssl.experiment.backends import OneMachine
from fedssl.experiment.progress.views import QuietView
from fedssl.federation.engines.flower.client_app import Side
from fedssl.federation.engines.flower.directory import ByKey
from fedssl.federation.engines.flower.engine import FlowerEngine
from fedssl.reports.watch import WatchServer
from scripts.check_report import Browser
from tests.helpers.faults import experiment
from tests.helpers.flower_grid import FakeGrid, answering, node

pytestmark = pytest.mark.browser
EVIL = "<script>document.title='taken'</script><img src=//elsewhere.example/x onerror=document.title='taken'>"
NAMES = ["north", EVIL, *(f"site-{number}" for number in range(4))]
LIMIT = 120.0  # seconds, far more than it takes
SEEN = "document.querySelector('{}')?.innerText ?? ''"


class Sites(OneMachine):
    """Clients behind a grid, known by their keys; a test kills them by taking their nodes away."""

    def __init__(self):
        self.nodes = [node(number, key=str(number).encode()) for number in range(6)]

    def engine(self, run):
        grid = FakeGrid(self.nodes, answering(Side(run.parts.client, run.store, run.folder.path / "log.jsonl")))
        directory = ByKey(
            grid=grid, names=NAMES, keys={str(k).encode(): name for k, name in enumerate(NAMES)}, say=run.view.say
        )
        view = {"waiting": run.view.waiting, "presence": run.view.presence, "clients": 6}
        places = {"grid": grid, "directory": directory, "folder": run.folder.path}
        return FlowerEngine(**places, **view, about=lambda _: {}, patience=LIMIT, pause=0.2)


class Held(QuietView):
    """Lets a test go on round by round."""

    def __init__(self):
        self.rounds, self.may_go = 0, threading.Semaphore(0)

    def round_finished(self, record):
        self.rounds = record["round"]
        self.may_go.acquire(timeout=LIMIT)


def until(browser, script, wanted):
    deadline = time.monotonic() + LIMIT
    while wanted not in (seen := str(browser.run(script))):
        assert time.monotonic() < deadline, f"{wanted!r} did not appear in {seen!r}"
        time.sleep(0.1)


@pytest.fixture
def going(tmp_path):
    """A run in a thread, its view, and its sites."""
    sites, view = Sites(), Held()
    run = experiment("BYOL + FedEMA", rounds=3, engine="in-process", **{"data.test_images": 10})
    run.backend = sites
    thread = threading.Thread(target=run.run, args=(tmp_path / "run", view), daemon=True)
    thread.start()
    yield tmp_path / "run", view, sites
    for _ in range(4):
        view.may_go.release()
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_values_change_without_a_reload_and_a_killed_client_appears_as_away(going):
    folder, view, sites = going
    while view.rounds == 0 and not (folder / "live.json").exists():
        time.sleep(0.05)
    partition = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(partition | {"names": NAMES}))
    names = [f"client {k} ({name})" for k, name in enumerate(NAMES)]
    with WatchServer([folder]) as server, Browser() as browser:
        browser.open(server.url)
        browser.run("window.same = true")
        until(browser, SEEN.format(".tile .value"), "0 of 3")
        view.may_go.release()  # round 1
        until(browser, SEEN.format(".tile .value"), "1 of 3")
        until(browser, "document.querySelectorAll('figure svg').length > 0", "True")
        killed, sites.nodes[:] = sites.nodes[:], []
        view.may_go.release()  # round 2, for which nobody is here
        until(browser, SEEN.format(".presence.away"), "away for")
        until(browser, SEEN.format(".doing"), "to come")
        sites.nodes[:] = killed
        until(browser, SEEN.format(".tile .value"), "2 of 3")
        view.may_go.release()
        view.may_go.release()
        until(browser, SEEN.format(".state"), "finished")
        assert browser.run("window.same"), "the page was never loaded again"
        assert browser.complaints(server.url) == []
        assert browser.run("document.title").startswith("run 3/3")
        assert browser.run("document.querySelector('table').innerText").count("<script>") == 1, "it is text"
        assert all(name in browser.run("document.querySelector('table').innerText") for name in names)


def test_it_fits_a_phone_follows_dark_and_says_when_nobody_answers(going):
    folder, _, _ = going
    while not (folder / "live.json").exists():
        time.sleep(0.05)
    with Browser() as browser:
        with WatchServer([folder, folder]) as server:
            colours = []
            for width, scheme in ((1280, "light"), (1280, "dark"), (375, "light")):
                browser.open(server.url, width=width, scheme=scheme)
                until(browser, SEEN.format("#connection"), "Updated")
                assert browser.run("document.documentElement.scrollWidth") <= width
                colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
                assert browser.complaints(server.url) == []
            assert colours[0] == colours[2] != colours[1]
            assert browser.run("document.querySelectorAll('.watched').length") == 2
        until(browser, SEEN.format("#connection"), "No answer since")
