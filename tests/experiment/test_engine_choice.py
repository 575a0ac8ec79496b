"""The engine is chosen by measuring, and the choice is written down."""

import math
from dataclasses import replace

import pytest
import torch

from fedssl.core.weights import Weights
from fedssl.experiment import engine_choice
from fedssl.experiment.backends import for_workers
from fedssl.experiment.build.parts import build
from fedssl.experiment.engine_choice import choose_engine, default_workers, seconds_per_step
from fedssl.experiment.experiment import load
from tests.faults.test_damage import QUICK, Stops
from tests.helpers.faults import experiment
from tests.helpers.small import TINY


@pytest.fixture(scope="module")
def parts():
    return build(load("smoke", TINY).config)


def choose(parts, monkeypatch, here, apart, steps=10_000, cores=2, **settings):
    monkeypatch.setattr(engine_choice, "seconds_per_step", lambda client, client_id: here)
    monkeypatch.setattr(engine_choice, "_side_by_side", lambda side, workers: apart)
    monkeypatch.setattr(engine_choice.os, "sched_getaffinity", lambda _: set(range(cores)))
    return choose_engine(load("smoke", TINY | settings).config, parts, lambda config: None, steps)


def test_the_faster_one_wins(parts, monkeypatch):
    """Four clients a round: two rounds of two workers against four steps one after another."""
    choice = choose(parts, monkeypatch, here=0.100, apart=0.110)
    assert (choice.run.engine, choice.run.workers, choice.run.threads) == ("processes", 2, 1)
    assert choice.reason.endswith("110 ms in each of 2 processes with 1: 2 workers, 1.8x as fast")
    choice = choose(parts, monkeypatch, here=0.100, apart=0.210)
    assert (choice.run.engine, choice.run.threads) == ("in-process", 1)
    assert choice.reason.endswith("one process is enough")
    assert choose(parts, monkeypatch, here=0.1, apart=math.inf).run.engine == "in-process", "workers that did not start"


def test_a_round_is_as_long_as_its_fullest_worker(parts, monkeypatch):
    """Three clients on two workers need two turns."""
    settings = {"client_sampling.clients_per_round": 3}
    assert choose(parts, monkeypatch, 0.1, 0.14, **settings).run.engine == "processes"
    assert choose(parts, monkeypatch, 0.1, 0.16, **settings).run.engine == "in-process"


def test_short_runs_and_single_cores_are_not_measured(parts, monkeypatch):
    assert choose(parts, monkeypatch, 0.1, 0.01, steps=100).run.engine == "in-process"
    assert choose(parts, monkeypatch, 0.1, 0.01, cores=1).run.engine == "in-process"


def test_workers_that_do_not_fit_into_memory_are_not_started(parts, monkeypatch):
    monkeypatch.setattr(engine_choice, "own_bytes", lambda: 1_100_000_000)
    for available, engine in ((2_100_000_000, "in-process"), (2_300_000_000, "processes")):
        monkeypatch.setattr(engine_choice, "available_bytes", lambda left=available: left)
        choice = choose(parts, monkeypatch, here=0.100, apart=0.110)
        assert choice.run.engine == engine
        assert ("2 worker processes would need 2.2 GB and 2.1 GB are left" in choice.reason) == (engine == "in-process")


def test_what_was_asked_for_is_done(parts, monkeypatch):
    assert choose(parts, monkeypatch, 0.1, 0.01, engine="in-process").run.engine == "in-process"
    asked = choose(parts, monkeypatch, 0.1, 9.0, engine="processes", workers=3).run
    assert (asked.engine, asked.workers) == ("processes", 3)


def test_workers_are_as_many_as_cores_and_clients_allow(monkeypatch):
    monkeypatch.setattr(engine_choice.os, "sched_getaffinity", lambda _: set(range(8)))
    cpu = torch.device("cpu")
    asked = {(0, 5): 5, (1, 20): 8, (4, 20): 2, (16, 20): 1}
    assert {key: default_workers(cpu, *key) for key in asked} == asked


def test_several_gpus_are_measured_with_a_worker_each_and_one_is_not(parts, monkeypatch):
    for gpus, engine in ((2, "processes"), (1, "in-process")):
        monkeypatch.setattr(engine_choice.torch.cuda, "device_count", lambda count=gpus: count)
        chosen = choose(replace(parts, device=torch.device("cuda")), monkeypatch, 0.1, 0.11)
        assert chosen.run.engine == engine
    assert chosen.reason == "", "not measured"
    assert default_workers(torch.device("mps"), 0, 5) == 1


def test_measuring_leaves_nothing_behind(parts):
    first = parts.client.first_weights
    seconds = seconds_per_step(parts.client, 0)
    assert 0 < seconds < 60
    assert first.online.digest() != Weights.of(parts.client.method.online_encoder).digest(), "it did train"
    assert parts.client.first_weights.online.digest() == first.online.digest()


def test_two_real_workers_measure_side_by_side(tmp_path):
    config = load("smoke", TINY | {"engine": "processes", "workers": 2}).config
    seconds = engine_choice._side_by_side(for_workers(config, tmp_path), 2)
    assert 0 < seconds < 60


def test_a_run_goes_on_with_the_engine_it_was_begun_with(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        experiment("BYOL + FedEMA", engine="processes", workers=2, **QUICK).run(tmp_path / "run", Stops(1))
    view = Stops()
    experiment("BYOL + FedEMA", **QUICK).run(tmp_path / "run", view)
    assert 'engine = "processes"' in (tmp_path / "run" / "config.toml").read_text()
    assert not [line for line in view.lines if "engine" in line]


def test_the_choice_is_in_the_saved_settings(tmp_path):
    experiment("BYOL + FedEMA", **(QUICK | {"rounds": 1})).run(tmp_path / "run")
    assert 'engine = "in-process"' in (tmp_path / "run" / "config.toml").read_text()
