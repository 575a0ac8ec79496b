"""Flower's own simulation on Ray: the same bits as one process, and what is said when Ray cannot do it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.core.errors import FedsslError
from fedssl.federation.engines.flower.simulation import Resources, Simulation
from tests.faults.test_damage import Stops
from tests.helpers.faults import PRESETS, everything, experiment

QUICK = {"rounds": 3, "evaluation.every": 0, "data.test_images": 10}


class Watching:
    """A view that keeps what it was told."""

    def __init__(self):
        self.waits = []

    def __call__(self, text):
        self.waits.append(text)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster of one machine, which outlives the runs that use it."""
    folder = tmp_path_factory.mktemp("ray")
    program = (
        "import ray, sys; context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False); "
        "print(context.address_info['address'], flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(60)


@pytest.mark.flower
@pytest.mark.parametrize("name", PRESETS)
def test_the_same_bits_as_in_one_process(tmp_path, monkeypatch, cluster, name):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "one")
    settings = {"engine": "flower", "flower.ray_address": cluster, "flower.cpus_per_client": 0.5}
    experiment(name, **QUICK, **settings).run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert not (tmp_path / "two/uploads").exists()


@pytest.mark.flower
def test_secure_sums_on_ray_have_the_bits_of_one_process(tmp_path, monkeypatch, cluster):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    secure = QUICK | {"aggregation.secure": True, "update_rule.lambda_at": "client"}
    experiment("BYOL + FedEMA", engine="in-process", **secure).run(tmp_path / "one")
    settings = {"engine": "flower", "flower.ray_address": cluster, "flower.cpus_per_client": 0.5}
    experiment("BYOL + FedEMA", **secure, **settings).run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(tmp_path / "one")


@pytest.mark.flower
def test_a_run_goes_on_with_flower_where_another_engine_stopped(tmp_path):
    name = "BYOL + FedEMA"
    experiment(name, engine="in-process", **QUICK).run(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        experiment(name, engine="in-process", **QUICK).run(tmp_path / "two", Stops(1))
    experiment(name, engine="flower", **QUICK).run(tmp_path / "two", force=True)
    assert everything(tmp_path / "two") == everything(tmp_path / "one")


def simulation_of(folder, resources, waiting):
    about = {"clients": 3, "open_side": None, "folder": folder}
    return Simulation(**about, resources=resources, waiting=waiting)


def test_resources_reach_ray_as_they_were_asked(tmp_path):
    simulation = simulation_of(tmp_path, Resources(2.0, 0.5, "auto"), print)
    assert simulation._backend() == {
        "init_args": {"address": "auto", "log_to_driver": False, "logging_level": "error"},
        "client_resources": {"num_cpus": 2, "num_gpus": 0.5},
    }
    assert simulation_of(tmp_path, Resources(), print)._backend()["init_args"]["address"] == "local"


def test_a_simulation_that_does_not_start_is_an_error_with_the_reason(tmp_path, monkeypatch):
    def fails(*values, **options):
        raise ConnectionError("no Ray at auto")

    monkeypatch.setattr("flwr.simulation.run_simulation", fails)
    watching = Watching()
    simulation = simulation_of(tmp_path, Resources(ray_address="auto"), watching)
    with pytest.raises(FedsslError, match=r"no Ray at auto; flower\.cpus_per_client"), simulation:
        raise AssertionError("it cannot have started")


def test_a_simulation_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedssl.federation.engines.flower.simulation.START_LIMIT", 0.5)
    simulation = simulation_of(tmp_path, Resources(), Watching())
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda *values, **options: simulation._done.wait())
    with pytest.raises(FedsslError, match=r"did not start within 0\.5 s"), simulation:
        raise AssertionError("it cannot have started")
    assert simulation.waiting.waits
