import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedssl.experiment.progress import loggers
from fedssl.experiment.progress.loggers import Guarded, MlflowLogger, TensorBoardLogger, WandbLogger, make_loggers
from tests.helpers.written_runs import CONFIG, ROUNDS, SUMMARY, changed


def log_everything(logger, folder, summary=SUMMARY, done=None):
    logger.start(folder, CONFIG, done)
    for record in ROUNDS:
        logger.log_round(record)
    logger.finish(summary)


def test_tensorboard_files_hold_the_numbers(tmp_path):
    log_everything(TensorBoardLogger(), tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("knn")] == [(0, 0.25), (1, pytest.approx(0.3)), (2, 0.375)]
    assert [(e.step, e.value) for e in events.Scalars("mu")] == [(2, 0.5)]
    assert [(e.step, e.value) for e in events.Scalars("client 1/divergence")] == [(2, 4.0)]
    assert "round" not in events.Tags()["scalars"]
    (config,) = events.Tensors("config/text_summary")
    assert b"update_rule.tau = 0.7" in config.tensor_proto.string_val[0]


def test_tensorboard_hides_the_rounds_that_are_run_again(tmp_path):
    log_everything(TensorBoardLogger(), tmp_path)
    again = TensorBoardLogger()
    again.start(tmp_path, CONFIG, 1)
    again.log_round(changed(ROUNDS[2], knn=0.5))
    again.finish(SUMMARY)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("knn")] == [(0, 0.25), (1, pytest.approx(0.3)), (2, 0.5)]


class Calls(list):
    """A stand-in for a package: notes every call with its arguments."""

    def __getattr__(self, name):
        def note(*values, **options):
            self.append((name, *values, options))
            return self

        return note


def test_wandb_gets_settings_rounds_and_summary(tmp_path, monkeypatch):
    run = Calls()
    run.summary, run.id = {}, "abc"
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: (run.append(("init", options)), run)[1]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    (tmp_path / "name").mkdir()
    log_everything(WandbLogger(), tmp_path / "name")
    assert run[0][0] == "init"
    assert (run[0][1]["project"], run[0][1]["name"], run[0][1]["config"]["update_rule.tau"]) == ("fedssl", "name", 0.7)
    logged = [(values["knn"], options) for name, values, options in run[1:4]]
    assert logged == [(0.25, {"step": 0}), (0.3, {"step": 1}), (0.375, {"step": 2})]
    assert (run.summary["final.knn"], run.summary["mean_mu"], run.summary["status"]) == (0.375, 0.5, "finished")
    assert "data.source" not in run.summary
    assert run[4] == ("finish", {"exit_code": 0})
    log_everything(WandbLogger(), tmp_path / "name", done=1)
    assert "id" not in run[0][1]
    assert (run[5][1]["id"], run[5][1]["resume"]) == ("abc", "allow"), "a resumed run is the same run there too"


@pytest.mark.parametrize(("status", "ends"), [("finished", "FINISHED"), ("interrupted", "KILLED")])
def test_mlflow_gets_settings_rounds_and_summary(tmp_path, monkeypatch, status, ends):
    mlflow = Calls()
    mlflow.info = SimpleNamespace(run_id="abc")
    (tmp_path / "name").mkdir()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    log_everything(MlflowLogger(), tmp_path / "name", changed(SUMMARY, status=status))
    assert mlflow[:2] == [("set_experiment", "fedssl", {}), ("start_run", {"run_name": "name"})]
    assert mlflow[2][1]["update_rule.name"] == "fedema"
    assert (mlflow[5][1]["mu"], mlflow[5][2]) == (0.5, {"step": 2})
    assert mlflow[6][1]["summary.final.linear"] == 0.4
    assert mlflow[7] == ("end_run", {"status": ends})
    log_everything(MlflowLogger(), tmp_path / "name", done=1)
    assert mlflow[9] == ("start_run", {"run_id": "abc"})
    assert mlflow[10][0] == "log_metrics", "settings were logged before"


def test_no_logger_no_package():
    assert make_loggers([]) == []
    assert set(loggers.LOGGERS) == {"tensorboard", "wandb", "mlflow"}


def test_a_logger_that_fails_is_reported_once_and_stops_nobody(tmp_path):
    said, seen = [], []

    def fail(*_):
        raise ConnectionError("the server\nis down")

    broken = SimpleNamespace(start=fail, log_round=fail, finish=fail)
    whole = SimpleNamespace(
        start=lambda folder, config, done: seen.append(config["seed"]),
        log_round=lambda record: seen.append(record["round"]),
        finish=lambda summary: seen.append(summary["status"]),
    )
    guarded = Guarded([broken, whole], said.append)
    guarded.start(SimpleNamespace(folder=tmp_path, config=SimpleNamespace(as_raw=lambda: CONFIG), done=None))
    for record in ROUNDS:
        guarded.round_finished(record, None)
    guarded.finish(SUMMARY)
    assert said == ["warning: SimpleNamespace failed (ConnectionError: the server is down); the run continues"]
    assert seen == [0, 0, 1, 2, "finished"]
