"""The kept records of `fedssl paper` runs, and the page that shows them."""

import dataclasses
import json

import pytest

from fedssl.core.checksums import signed_json
from fedssl.experiment.config.texts import flatten
from fedssl.experiment.records.run_record import read_json
from fedssl.paper.catalogue import find_studies
from fedssl.paper.plan import choose_cells
from fedssl.paper.scales import find_scale
from scripts import paper_records
from tests.helpers.paper_runs import plan_of, write

PARTS = paper_records.read_list()


def cell_of(part, row, column="CIFAR-10, Non-IID"):
    (study,) = find_studies([part.experiment])
    return next(cell for cell in choose_cells(study, [row], [column]) if cell.row.label == row)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_what_is_listed_can_be_run(part, tmp_path):
    plan = part.plan(tmp_path)
    assert plan.runs
    assert not plan.left_out


def test_the_page_shows_the_records_as_they_are():
    page = paper_records.PAGE.read_text()
    assert paper_records.page_with_tables(page) == page, "run `make results`"


def test_every_record_is_of_a_listed_run():
    wanted = {run.folder for part in PARTS for run in part.plan(paper_records.RECORDS).runs.values()}
    assert {path.parent for path in paper_records.RECORDS.glob("*/*/summary.json")} <= wanted


def test_records_are_whole_and_name_no_path_of_a_machine():
    paths = [*paper_records.RECORDS.glob("*/*/environment.json")]
    assert len(paths) > 30
    for path in paths:
        assert not [word for word in read_json(path, must=True)["command"] if word.startswith("/")], path


def test_a_command_is_kept_without_the_place_of_this_checkout(tmp_path):
    path = tmp_path / "environment.json"
    path.write_text(signed_json(json.dumps({"command": ["run", f"{paper_records.ROOT}/runs/x"]}, indent=2)))
    path.write_text(paper_records.without_places(path))
    assert read_json(path, must=True) == {"command": ["run", "runs/x"]}


def test_a_finished_run_is_kept_and_brought_back_as_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_records, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(paper_records, "RECORDS", tmp_path / "records")
    plan = plan_of("ssl-methods", tmp_path / "runs", seeds=2, rows=["FedBYOL"], columns=["CIFAR-10"])
    first, second = plan.runs.values()
    write(first, 0.5)
    assert [*paper_records.keep(plan, tmp_path / "records")] == [first.name]
    assert [*paper_records.keep(plan, tmp_path / "records")] == [], "it is there already"
    (tmp_path / "runs").rename(tmp_path / "lost")
    paper_records.bring_back(plan.scale.name)
    assert first.finished(plan.scale.evaluation_epochs)
    assert not second.trained()


def test_a_table_has_the_numbers_of_the_records_and_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(paper_records, "RECORDS", tmp_path)
    part = dataclasses.replace(PARTS[0], seeds=1)
    empty = part.table()
    run = part.plan(tmp_path).run_of(cell_of(part, "FedU"), 0)
    write(run, 0.5, find_scale(part.scale).evaluation_epochs)
    table = part.table()
    assert "no run" in empty
    assert "(n = " not in empty
    assert "| FedU | 80.52 ± 0.21 | 50.00 (n = 1) | -30.52 |" in table
    assert table.splitlines()[6] == "| FedEMA (autoscaler, τ = 0.7) | 83.34 ± 0.39 | missing | – |"
    assert table.splitlines()[7] == "| BYOL (Centralized) | 90.46 ± 0.34 | missing | – |", "beside the others"
    missing = " ".join(table.split())
    assert "FedBYOL, CIFAR-10, Non-IID: no run" in missing
    assert "FedU, CIFAR-10, Non-IID: no run" not in missing


def test_the_hour_long_runs_have_the_papers_schedule_and_nothing_else_of_their_own(tmp_path):
    long, short = (
        next(part for part in PARTS if part.scale == scale and part.experiment == "linear-evaluation")
        for scale in ("night-long", "night")
    )
    for label in long.rows:
        runs = [part.plan(tmp_path).run_of(cell_of(part, label), 0).config.as_raw() for part in (long, short)]
        now, night = map(flatten, runs)
        assert {key: now[key] for key in now if now[key] != night[key]} == {"rounds": 100, "local_training.epochs": 5}
