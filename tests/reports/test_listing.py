import io
import os
import time

import pytest
from rich.console import Console

from fedssl.core.errors import FedsslError
from fedssl.reports.listing import Listed, list_runs
from fedssl.reports.tables import print_list
from tests.helpers.written_runs import ROUNDS, SUMMARY, changed, write_run

WHAT = "byol + fedema, synthetic, 2 clients (classes)"


def at(folder, seconds_ago):
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds_ago,) * 2)


def test_one_line_a_run_the_oldest_first_and_broken_ones_say_why(tmp_path):
    at(write_run(tmp_path / "whole"), 3 * 86400 + 60)
    killed = write_run(tmp_path / "killed", rounds=ROUNDS[:2], summary=None)
    (killed / "checkpoints" / "round-000001").mkdir(parents=True)
    at(killed, 2 * 3600 + 60)
    stopped = changed(SUMMARY, status="interrupted", rounds=0, final={}, seconds=5)
    at(write_run(tmp_path / "stopped", rounds=ROUNDS[:1], summary=stopped), 300)
    torn = write_run(tmp_path / "torn")
    (torn / "rounds.jsonl").write_text('{"round": 0, "clients": []}\n{"rou')
    (tmp_path / "zz-notes").mkdir()
    (tmp_path / "file.txt").write_text("not a folder")
    first, second, third, fourth, fifth = list_runs(tmp_path)
    knn, linear = "25.0 % → 37.5 %", "20.0 % → 40.0 %"
    assert first == Listed(
        name="whole",
        what=WHAT,
        rounds="2/2",
        status="finished",
        verdict="not known",
        knn=knn,
        linear=linear,
        seconds="1 min 15 s",
        age="3 d ago",
    )
    status = "running, or killed: the same command resumes it"
    assert second == Listed(
        name="killed",
        what=WHAT,
        rounds="1/2",
        status=status,
        verdict="–",
        knn="–",
        linear="–",
        seconds="–",
        age="2 h ago",
    )
    knn, linear = "25.0 % → –", "20.0 % → –"
    assert third == Listed(
        name="stopped",
        what=WHAT,
        rounds="0/2",
        status="interrupted",
        verdict="–",
        knn=knn,
        linear=linear,
        seconds="5.0 s",
        age="5 min ago",
    )
    assert (fourth.name, fourth.what, fourth.age) == ("torn", "", "just now")
    assert fourth.status.startswith("broken: rounds.jsonl, line 2: damaged")
    assert (fifth.name, fifth.status) == ("zz-notes", "broken: not a run folder (config.toml is missing)")


def test_a_killed_run_is_as_far_as_its_newest_checkpoint(tmp_path):
    run = write_run(tmp_path / "run", rounds=ROUNDS[:2], summary=None)
    for name in ("round-000000", "round-000001", "round-000002.77.unfinished"):
        (run / "checkpoints" / name).mkdir(parents=True)
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "clie')
    assert [listed.rounds for listed in list_runs(tmp_path)] == ["1/2"]


def test_a_run_folder_itself_can_be_named(tmp_path):
    assert [listed.name for listed in list_runs(write_run(tmp_path / "run"))] == ["run"]


def test_no_such_folder(tmp_path):
    with pytest.raises(FedsslError, match="there is no such folder"):
        list_runs(tmp_path / "nowhere")


def test_every_run_is_one_line_in_a_pipe(tmp_path):
    write_run(tmp_path / "a-run-with-quite-a-long-name-[red]-as-people-give-them")
    write_run(tmp_path / "b", summary={"status": "finished"})
    screen = io.StringIO()
    print_list(list_runs(tmp_path), Console(file=screen, width=240))
    lines = [line for line in screen.getvalue().splitlines() if WHAT in line]
    assert len(lines) == 2
    assert "a-run-with-quite-a-long-name-[red]-as-people-give-them" in screen.getvalue()
    screen.truncate(0)
    print_list([], Console(file=screen, width=240))
    assert "no runs here" in screen.getvalue()
