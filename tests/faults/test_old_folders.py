"""Folders that earlier versions wrote are read and resumed: tests/fixtures/README.md says how they were made."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedssl import load_encoder
from fedssl.deployment.server_run import run_at_server
from fedssl.experiment.experiment import load
from fedssl.experiment.records.run_record import RunRecord, read_environment
from fedssl.federation.checkpoint import CheckpointStore
from fedssl.federation.client_store import ClientStore
from fedssl.reports.compare import results
from fedssl.reports.listing import list_runs
from fedssl.reports.run_page import write_report
from tests.faults.test_damage import Stops
from tests.helpers.deployed import NAMES, Federation, compared, write_images
from tests.helpers.flower_grid import grid_of_sites

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = ["before-checksums", "before-move"]


@pytest.fixture
def old(request, tmp_path):
    return shutil.copytree(FIXTURES / request.param, tmp_path / "old")


def check_weights(old, found, run):
    """Bit for bit where the run's own record says that it was resumed in the environment it was begun in."""
    (resumed,) = read_environment(run)["resumed"]
    assert resumed["after_round"] == 2
    if not resumed["changed"]:
        clients = {str(client): state[:3] for client, state in found["clients"].items()}
        assert {"global": found["global"], "clients": clients} == json.loads((old / "finished.json").read_text())
    torch.testing.assert_close(
        load_file(run / "encoder.safetensors"), load_file(old / "finished.safetensors"), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("old", RUNS, indirect=True)
def test_an_old_run_is_resumed_to_the_weights_that_it_would_have_had(old):
    view, run = Stops(), old / "run"
    report = load(str(run / "config.toml")).run(run, view)
    assert report.summary["status"] == "finished"
    assert not any("moved to" in line for line in view.lines), "nothing of it is taken for damaged"
    store, checkpoints = ClientStore(run / "clients"), CheckpointStore(run / "checkpoints")
    check_weights(old, compared(checkpoints.load(4).state, lambda _: store), run)
    assert [record["round"] for record in RunRecord.read(run).rounds] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("old", RUNS, indirect=True)
def test_an_old_run_is_read_by_all_that_reads_runs(old):
    run = old / "run"
    record = RunRecord.read(run)
    assert (record.status, [line["round"] for line in record.rounds]) == ("interrupted", [0, 1, 2])
    assert {row.label: row.values for row in results([record, record])}["rounds"] == ("2", "2")
    assert [listed.name for listed in list_runs(old)] == ["run"]
    write_report([run], old / "report.html")
    assert "<svg" in (old / "report.html").read_text()
    assert len(load_encoder(run)(torch.zeros(2, 3, 16, 16))) == 2


@pytest.mark.parametrize("old", ["deployment"], indirect=True)
def test_an_old_deployment_is_resumed_by_its_server_and_its_sites(old):
    for number, name in enumerate(NAMES):
        write_images(old / "sites" / name, number, count=16)
    federation = Federation(old, rounds=4)
    run_at_server(grid_of_sites(old, NAMES), {"folder": str(federation.run)})
    assert RunRecord.read(federation.run).status == "finished"
    check_weights(old, federation.everything(), federation.run)
