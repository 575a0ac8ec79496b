"""Whole runs under differential privacy: engines, stops, the key, the record, and what is refused."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.records.run_record import RunRecord
from fedssl.reports.prose import story, tiles, warnings
from fedssl.reports.run_page import write_report
from tests.faults.test_damage import Stops
from tests.federation.engines.test_flower import OverMessages
from tests.helpers.faults import everything, experiment
from tests.helpers.written_runs import as_older

NAME = "BYOL + FedEMA"
PRIVATE = {
    "privacy.name": "client-dp",
    "privacy.clip_norm": 0.5,
    "privacy.noise_multiplier": 0.1,
    "update_rule.lambda_at": "client",
    "aggregation.batchnorm": "local-statistics",
    "rounds": 3,
    "evaluation.every": 0,
    "data.test_images": 10,
}


@pytest.mark.parametrize("placement", ["central", "local"])
def test_every_engine_carries_every_placement_and_ends_with_the_same_bits(tmp_path, placement):
    settings = PRIVATE | {"privacy.placement": placement, "privacy.noise_seed": "run", "rounds": 2}
    over = experiment(NAME, engine="in-process", **settings)
    over.backend = OverMessages()
    runs = {
        "in-process": experiment(NAME, engine="in-process", **settings),
        "processes": experiment(NAME, engine="processes", workers=2, **settings),
        "flower": over,
    }
    found = {name: (one.run(tmp_path / name), everything(tmp_path / name))[1] for name, one in runs.items()}
    assert found["processes"] == found["in-process"]
    assert found["flower"] == found["in-process"]
    assert found["flower"]["summary"]["failures"] == 0


@pytest.mark.parametrize(("placement", "engine"), [("central", "in-process"), ("local", "processes")])
def test_engines_agree_and_a_stopped_run_ends_with_the_same_bits(tmp_path, placement, engine):
    """int8 on the wire, too: noise is added before or after, never between."""
    settings = PRIVATE | {"privacy.placement": placement, "privacy.noise_seed": "run", "aggregation.wire_dtype": "int8"}
    settings |= {"rounds": 2}
    experiment(NAME, engine="in-process", **settings).run(tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, engine=engine, workers=2, **settings).run(tmp_path / "two", Stops(1))
    experiment(NAME, engine=engine, workers=2, **settings).run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert not (tmp_path / "one" / "noise.key").exists()


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """A run with secret noise, stopped after its first round."""
    folder = tmp_path_factory.mktemp("secret") / "run"
    view = Stops(1)
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, engine="in-process", **PRIVATE).run(folder, view)
    return folder, view.lines


def test_secret_noise_is_the_same_after_a_stop_and_another_in_another_run(secret, tmp_path):
    folder, _ = secret
    key = folder / "noise.key"
    assert key.stat().st_mode & 0o777 == 0o600
    found = {}
    for name in ("a", "b", "other"):
        shutil.copytree(folder, tmp_path / name)
        if name == "other":
            as_older(tmp_path / name)  # else another key is noticed
            (tmp_path / name / "noise.key").write_text("5a" * 32)
        experiment(NAME, engine="in-process", **PRIVATE).run(tmp_path / name)
        found[name] = everything(tmp_path / name)
    assert found["a"] == found["b"]
    assert found["other"]["global"] != found["a"]["global"]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("5a5", "the key of the noise is damaged"),
        ("5a" * 32, "not the key of the noise with which the run was begun"),
        (None, "the key of the noise is missing"),
    ],
)
def test_a_key_that_is_damaged_another_or_lost_is_named_and_none_is_made(secret, tmp_path, key, why):
    run = shutil.copytree(secret[0], tmp_path / "run")
    (run / "noise.key").unlink()
    if key:
        (run / "noise.key").write_text(key)
    for folder in (run, as_older(run)) if key is None else (run,):
        with pytest.raises(DamagedError, match=rf"noise\.key: {why}: put back a copy of it, or start anew"):
            experiment(NAME, engine="in-process", **PRIVATE).run(folder)
        assert (folder / "noise.key").exists() == bool(key)


def test_a_run_that_cannot_be_resumed_keeps_its_settings(secret, tmp_path):
    run = shutil.copytree(secret[0], tmp_path / "run")
    (run / "noise.key").unlink()
    settings = (run / "config.toml").read_bytes()
    with pytest.raises(DamagedError, match=r"noise\.key"):
        experiment(NAME, engine="in-process", **PRIVATE | {"rounds": 50}).run(run, force=True)
    assert (run / "config.toml").read_bytes() == settings


def test_a_client_that_adds_noise_of_its_own_cannot_start_over():
    settings = PRIVATE | {"failures.damaged_state": "start-over"}
    load_config("smoke", settings)
    with pytest.raises(FedsslError, match=r"failures\.damaged_state: a client that adds noise of its own"):
        load_config("smoke", settings | {"privacy.placement": "local"})


def test_epsilon_is_said_and_recorded(secret, tmp_path):
    folder, lines = secret
    summary = json.loads((folder / "summary.json").read_text())
    after_one = summary["privacy"]
    assert (after_one["unit"], after_one["rounds"], after_one["releases"], after_one["delta"]) == ("client", 1, 1, 1e-5)
    assert after_one["epsilon"] == pytest.approx(91.817, abs=0.01), "a multiplier of 0.1, once"
    said = [line for line in lines if "differential privacy after" in line]
    assert "after 3 rounds" in said[0], "what is promised, before the first round"
    assert "after 1 rounds" in said[1], "what was spent"
    assert any("promises next to nothing" in line for line in lines)
    record = RunRecord.read(folder)
    assert [tile.value for tile in tiles(record) if tile.label == "Epsilon"] == ["91.817"]
    assert any(text.startswith("Client-level differential privacy") for text in warnings(record))


def test_a_report_of_clients_that_send_no_numbers(tmp_path):
    settings = {**PRIVATE, "privacy.placement": "local", "rounds": 2}
    experiment(NAME, engine="in-process", **settings).run(tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert set(rounds[1]["clients"][0]) == {"client", "n", "ema", "seconds", "bytes_up", "bytes_down"}
    assert rounds[1]["loss"] is None
    assert "noise was added" in story(RunRecord.read(tmp_path / "run"), 10)[1]
    left_out = write_report([tmp_path / "run"], tmp_path / "report.html", images=0)
    assert (tmp_path / "report.html").stat().st_size > 0
    assert any("loss" in line for line in left_out)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"aggregation.batchnorm": "average"}, "exact BatchNorm statistics would leave the clients"),
        ({"aggregation.name": "median"}, "'median' does not bound what one client does"),
        ({"update_rule.lambda_at": "server"}, "set update_rule.lambda_at to 'client'"),
        ({"update_rule.name": "none"}, "nothing is shared"),
        ({"method.name": "fedca", "update_rule.name": "replace"}, "fedca also sends normalised projections"),
        ({"privacy.clip_norm": 0.0}, "privacy.clip_norm: 0.0 is not a number above 0"),
        ({"privacy.delta": 1.0}, "privacy.delta: 1.0 is not a number"),
    ],
)
def test_what_would_break_the_promise_is_refused(change, why):
    settings = {
        key: value for key, value in PRIVATE.items() if key != "update_rule.lambda_at" or "name" not in str(change)
    }
    with pytest.raises(FedsslError) as refused:
        load_config("smoke", settings | change)
    assert why in str(refused.value)


def test_bounds_must_be_given_and_other_rules_need_no_lambda():
    with pytest.raises(FedsslError, match=r"privacy\.clip_norm: must be given"):
        load_config("smoke", {"privacy.name": "client-dp"})
    allowed = {key: value for key, value in PRIVATE.items() if key != "update_rule.lambda_at"}
    for rule in ({"update_rule.name": "replace"}, {"update_rule.scale": 0.5}, {"update_rule.name": "fedu"}):
        assert load_config("smoke", allowed | rule).privacy.name == "client-dp"
    assert load_config("smoke").privacy.as_raw() == {"name": "none"}


def test_the_list_of_settings():
    listed = CliRunner().invoke(app, ["privacy"]).output
    assert "privacy.clip_norm = must be given   (a number above 0)" in listed
    assert 'privacy.placement = "central"   (one of central, local, distributed)' in listed
