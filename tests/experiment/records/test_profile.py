"""Where the time went: every part is measured, and together they are the time on the wall."""

import itertools
import json
import sys
import time

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.stopwatch import PARTS
from fedssl.experiment.experiment import load
from fedssl.experiment.progress.views import QuietView
from fedssl.reports.run_page import write_report
from tests.helpers.html_page import HtmlPage
from tests.helpers.small import TINY

SETTINGS = TINY | {"data.train_images": 400, "rounds": 3}


def lines(run):
    return [json.loads(line) for line in (run / "profile.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    load("smoke", SETTINGS | {"engine": "in-process"}).run(folder / "plain")
    load("smoke", SETTINGS | {"engine": "in-process", "profile": True}).run(folder / "one")
    load("smoke", SETTINGS | {"engine": "processes", "workers": 2, "profile": True}).run(folder / "two")
    return folder


def unclaimed(written):
    """The share of the time that no part has claimed."""
    return abs(sum(line["parts"]["other"] for line in written)) / sum(line["wall"] for line in written)


@pytest.mark.parametrize("name", ["one", "two"])
def test_the_parts_make_up_the_time_of_the_run(runs, name):
    written = lines(runs / name)
    assert [line["round"] for line in written] == [0, 1, 2, 3]
    for line in written:
        assert set(line["parts"]) == {*PARTS, "other"}
        assert sum(line["parts"].values()) == pytest.approx(line["wall"])


def test_hardly_any_work_is_in_no_part(tmp_path, monkeypatch):
    """By a clock that ticks once for every call of a Python function: no machine is too busy for it."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    sys.setprofile(lambda _frame, event, _value: next(ticks) if event == "call" else None)
    try:
        load("smoke", SETTINGS | {"profile": True, "engine": "in-process"}).run(tmp_path / "run")
    finally:
        sys.setprofile(None)
    assert unclaimed(lines(tmp_path / "run")) < 0.15  # of calls; of the time of a real round, under 0.05


def test_every_part_is_in_its_place(runs):
    first, *trained = lines(runs / "one")
    assert first["parts"]["evaluation"] > 0
    assert first["parts"]["steps"] == first["parts"]["idle"] == 0
    for line in trained:
        assert all(line["parts"][name] > 0 for name in PARTS)


def test_workers_side_by_side_count_by_their_number(runs):
    assert {line["workers"] for line in lines(runs / "two")[1:]} == {2}
    assert lines(runs / "two")[1]["parts"]["idle"] > 0, "in the first round workers have to come to life"


def test_measuring_changes_no_bit(runs):
    digests = {json.loads((runs / name / "summary.json").read_text())["weights_sha256"] for name in ("plain", "one")}
    assert len(digests) == 1
    assert not (runs / "plain" / "profile.jsonl").exists()


def test_the_summary_and_the_report_show_it(runs):
    summary = json.loads((runs / "one" / "summary.json").read_text())
    assert summary["profile"]["steps"] == pytest.approx(sum(line["parts"]["steps"] for line in lines(runs / "one")))
    write_report([runs / "one"], runs / "one.html", images=0)
    page = HtmlPage((runs / "one.html").read_text())
    assert "forward, backward and optimizer" in page.text
    write_report([runs / "plain"], runs / "plain.html", images=0)
    assert "Where the time went" not in HtmlPage((runs / "plain.html").read_text()).text


def test_a_resumed_run_has_one_line_a_round(tmp_path):
    class Stops(QuietView):
        def round_finished(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    experiment = load("smoke", SETTINGS | {"engine": "in-process", "profile": True})
    with pytest.raises(KeyboardInterrupt):
        experiment.run(tmp_path / "run", Stops())
    (tmp_path / "run" / "profile.jsonl").open("a").write('{"round": 3, "wall": 1')  # torn by a kill
    experiment.run(tmp_path / "run")
    rounds = [line["round"] for line in lines(tmp_path / "run")]
    assert rounds == [0, 1, 3], "the round in which it was stopped had not been written yet"


def test_the_command_prints_a_table(tmp_path):
    sets = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["run", "smoke", "--profile", "--out", str(tmp_path / "run"), *sets])
    assert result.exit_code == 0, result.output
    assert "Where the time went" in result.output
    assert "update rule and loading weights" in result.output
