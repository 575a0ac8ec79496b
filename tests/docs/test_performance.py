"""docs/performance.md and docs/scale.md show the record of `make bench` as it is, and say the rest in few words."""

import re

import pytest

from fedssl.experiment.records.run_record import read_json
from scripts import performance

RECORD = read_json(performance.RECORD)
ROW = {"unit": "s", "baseline": 2.0, "ours": 1.0, "ratio": 0.5, "needed": "≤ 1", "margin": 2.0, "passed": True}
ABOUT = {"cpu": "C", "cores": 2, "python": "3", "packages": {"torch": "2"}, "git_commit": "x"}


@pytest.mark.parametrize("path", performance.PAGES, ids=lambda path: path.stem)
def test_a_page_shows_the_record_as_it_is(path):
    page = path.read_text(encoding="utf-8")
    assert performance.filled(page, RECORD) == page, "run `make results`"


def test_every_row_is_on_the_page_and_those_of_sites_on_theirs():
    speed, scale = (path.read_text(encoding="utf-8") for path in performance.PAGES)
    for row in RECORD["rows"]:
        shown = f"| {row['target']} | {row['against']} |"
        assert speed.count(shown) == 1
        assert scale.count(shown) == row["target"].startswith(("9 ", "13 ")) + row["target"].endswith(" sites")


def test_the_page_is_short():
    page = performance.PAGES[0].read_text(encoding="utf-8")
    assert len(re.sub(r"(?s)<!-- (bench.*?) -->.*?<!-- end of \1 -->", "", page).split()) <= 620


def test_every_row_and_curve_names_a_run_and_every_run_is_used():
    named = {one["run"] for one in (*RECORD["rows"], *RECORD["curves"], RECORD["hops"])}
    assert named == set(RECORD["runs"])


def test_a_row_that_is_measured_again_replaces_the_older_one():
    old = {"runs": {"first": {"note": ""}}, "curves": [], "rows": [], "hops": {}}
    for target in ("11 a", "time against b", "5 c"):
        old["rows"].append({"run": "first", "target": target, "against": "limit", **ROW})
    again = {"target": "11 a", "against": "limit", **ROW, "ours": 0.5}
    new = {
        "command": "bench",
        "date": "2026-01-02",
        "environment": ABOUT | {"load_before_and_after": [1.2, 3]},
        "rows": [again],
        "curves": [],
        "hops": {},
    }
    found = performance.merged(old, new, "busy")
    name = "2026-01-02, C, load 1 to 3"
    assert [(row["target"], row["run"]) for row in found["rows"]] == [
        ("time against b", "first"),
        ("5 c", "first"),
        ("11 a", name),
    ]
    assert set(found["runs"]) == {"first", name}
    assert "| 11 a | limit | s | 2 | 0.5 | 0.5 | ≤ 1 | pass | b |" in performance.table(found)
    found["rows"] = found["rows"][2:]
    assert set(performance.merged(found, new)["runs"]) == {name}, "a run that no row needs is gone"


def test_hops_by_program_with_what_no_step_counted():
    spent = {"server: superlink": 2.0, "client: supernode": 3.0, "server: superexec": 0.25, "client: supervisor": 0.5}
    steps = {"client: supernode: training": 1.25, "server: superlink: read": 0.5, "client: supernode: read": 1.0}
    hops = {"run": "b", "CPU seconds of a round": spent, "CPU seconds of a round, by step": steps}
    assert performance.hops_table({"runs": {"a": {}, "b": {}}, "hops": hops}).splitlines() == [
        "| step (run b) | sites | SuperLink | other processes |",
        "|---|---:|---:|---:|",
        "| read | 1.00 | 0.50 |  |",
        "| training | 1.25 |  |  |",
        "| sockets, event loops, all else | 0.75 | 1.50 | 0.75 |",
        "| **in all** | 3.00 | 2.00 | 0.75 |",
    ]
    assert performance.hops_table({"runs": {}, "hops": {}}) == ""


def test_hops_that_are_not_measured_again_stay():
    old = {"runs": {"first": {}}, "curves": [], "rows": [], "hops": {"run": "first", "clients": 3}}
    new = {"command": "bench", "date": "2026-01-02", "environment": ABOUT | {"load_before_and_after": [1, 1]}}
    assert performance.merged(old, new | {"rows": [], "curves": [], "hops": {}}) == old
    found = performance.merged(old, new | {"rows": [], "curves": [], "hops": {"clients": 4}})
    assert found["hops"] == {"run": "2026-01-02, C, load 1 to 1", "clients": 4}
    assert set(found["runs"]) == {found["hops"]["run"]}
