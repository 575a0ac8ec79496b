"""The real packages of Weights & Biases and MLflow, offline; `make check-loggers` installs them and runs these."""

import pytest

from fedssl.experiment.progress.loggers import MlflowLogger, WandbLogger
from tests.experiment.progress.test_loggers import log_everything
from tests.helpers.written_runs import SUMMARY, changed

pytestmark = pytest.mark.loggers


def test_wandb_offline_keeps_config_rounds_and_status_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_everything(WandbLogger(), tmp_path)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    stored = file.read_bytes()  # records of plain JSON texts
    for text in (b"update_rule.tau", b"knn", b"0.375", b'"finished"'):
        assert text in stored


@pytest.mark.parametrize(("status", "expected"), [("finished", "FINISHED"), ("interrupted", "KILLED")])
def test_mlflow_database_holds_settings_curves_and_status(tmp_path, monkeypatch, status, expected):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    log_everything(MlflowLogger(), tmp_path, changed(SUMMARY, status=status))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedssl").experiment_id])
    assert run.info.status == expected
    assert run.data.params["update_rule.tau"] == "0.7"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "knn")] == [
        (0, 0.25),
        (1, 0.3),
        (2, 0.375),
    ]
