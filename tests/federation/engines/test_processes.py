"""Worker processes: the same bits as one process, and a worker that dies or hangs is a failed client."""

import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
import torch

from fedssl.core.errors import StorageError
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.processes import ProcessEngine
from fedssl.federation.model_communication import FedEMA
from fedssl.federation.rounds import ServerState, run_round
from tests.faults.test_damage import Stops
from tests.helpers import worker_sides
from tests.helpers.faults import PRESETS, everything, experiment
from tests.helpers.small import digests, make_server, run, state_digests

QUICK = {"rounds": 3, "evaluation.every": 0, "data.test_images": 10}


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_bits_as_in_one_process(tmp_path, name):
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "one")
    view = Stops()
    experiment(name, engine="processes", workers=2, **QUICK).run(tmp_path / "two", view)
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert view.steps == 3 * 3 * 2, "every step of every client was shown"
    assert not [*(tmp_path / "two").glob("*.unfinished")]


def test_a_run_goes_on_in_processes_and_with_another_engine(tmp_path):
    name = "BYOL + FedEMA"
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        experiment(name, engine="processes", workers=2, **QUICK).run(tmp_path / "two", Stops(1))
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "two", force=True)
    assert everything(tmp_path / "two") == everything(tmp_path / "one")


class Federation:
    """Four tiny clients in two workers."""

    def __init__(self, folder, side, time_limit=None):
        (folder / "clients").mkdir()
        self.client, self.store = worker_sides.whole(folder / "clients", 0)
        self.server = make_server(4, FedEMA(), pool=self.client.method.pool)
        self.state = ServerState(0, self.client.initial_global_weights())
        self.engine = ProcessEngine(
            side=partial(side, folder / "clients"), folder=folder, workers=2, time_limit=time_limit
        )

    def round(self):
        outcome = run_round(self.server, self.engine, self.state)
        self.state = outcome.state
        return outcome


def test_a_worker_that_dies_is_a_failed_client_and_is_replaced(tmp_path):
    (tmp_path / "x").mkdir()
    federation = Federation(tmp_path / "x", worker_sides.dies)
    with federation.engine:
        first = federation.round()
        assert [(f.client_id, f.code, f.detail) for f in first.failures] == [
            (1, "exception", "its process ended with code 9")
        ]
        assert [result.client_id for result in first.results] == [0, 2, 3]
        second = federation.round()
        assert [result.client_id for result in second.results] == [0, 1, 2, 3]
        workers = [psutil.Process(worker.process.pid) for worker in federation.engine._workers]
    assert all(_is_gone(worker) for worker in workers)


def test_a_worker_that_hangs_is_ended_after_the_time_limit(tmp_path, monkeypatch):
    """Its time is over when it hangs and the others have replied, however long that takes."""
    monkeypatch.setattr("fedssl.federation.engines.processes.GRACE", 1.0)
    (tmp_path / "x").mkdir()
    federation = Federation(tmp_path / "x", worker_sides.hangs, time_limit=600.0)
    run_tasks, monotonic, replies = federation.engine.run_tasks, time.monotonic, []

    def noted(tasks):
        for reply in run_tasks(tasks):
            replies.append(reply)
            yield reply

    def clock():
        return monotonic() + 3600 * (len(replies) == 3 and (tmp_path / "x/disturbed").exists())

    monkeypatch.setattr(federation.engine, "run_tasks", noted)
    monkeypatch.setattr(time, "monotonic", clock)
    with federation.engine:
        outcome = federation.round()
    assert [(f.client_id, f.code, f.detail) for f in outcome.failures] == [
        (1, "timeout", "no end after 600 s: its process was ended")
    ]
    assert [result.client_id for result in outcome.results] == [0, 2, 3]


def test_a_disk_that_refuses_in_a_worker_stops_the_run(tmp_path):
    (tmp_path / "x").mkdir()
    federation = Federation(tmp_path / "x", worker_sides.has_no_disk)
    with pytest.raises(StorageError, match="No space left on device"), federation.engine:
        federation.round()


def test_payloads_travel_both_ways(tmp_path):
    (tmp_path / "x").mkdir()
    federation = Federation(tmp_path / "x", worker_sides.shares_more)
    federation.client.method.pool = lambda payloads: {"all": torch.cat([one["seen"] for one in payloads])}
    federation.server = make_server(4, FedEMA(), pool=federation.client.method.pool)
    with federation.engine:
        federation.round()
        assert federation.state.payload["all"].tolist() == [1.0] * 4
        federation.round()
        assert federation.state.payload["all"].tolist() == [1.0] * 4 * 5


def test_workers_end_with_their_parent(tmp_path):
    settings = {**PRESETS["BYOL + FedEMA"][1], "engine": "processes", "workers": 2, "rounds": 2000}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fedssl", "run", "smoke", *options, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (tmp_path / "run/checkpoints/round-000001").exists():  # as long as a busy machine takes
        assert process.poll() is None, f"the run ended with code {process.returncode}"
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 600  # the kernel ends them: only a worker that is not told would be there so long
    while not all(_is_gone(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlived the run"
        time.sleep(0.05)


def _is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_client_alone_is_the_small_federations_result(tmp_path):
    """The engine changes nothing for rounds made by hand either."""
    expected, expected_store = run(tmp_path / "a", "fedema", rounds=2)
    (tmp_path / "x").mkdir()
    federation = Federation(tmp_path / "x", worker_sides.whole)
    with federation.engine:
        outcomes = [federation.round() for _ in range(2)]
    assert digests(outcomes[-1]) == digests(expected[-1])
    store = ClientStore(tmp_path / "x" / "clients")
    assert state_digests(store, outcomes[-1]) == state_digests(expected_store, expected[-1])


def test_lambda_at_the_client_is_the_servers_on_this_engine_too(tmp_path):
    everybody = {"client_sampling.clients_per_round": 6, **QUICK}
    experiment("BYOL + FedEMA", engine="in-process", **everybody).run(tmp_path / "server")
    at_client = {"update_rule.lambda_at": "client", **everybody}
    experiment("BYOL + FedEMA", engine="processes", workers=2, **at_client).run(tmp_path / "client")
    server, client = everything(tmp_path / "server"), everything(tmp_path / "client")
    assert client["global"] == server["global"]
    assert client["clients"] == server["clients"], "lambda_k included"
