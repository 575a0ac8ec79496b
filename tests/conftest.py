"""One torch thread: two threads on small tensors are ten times slower, and bits depend on the count."""

import signal
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
for sent in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
    # Under nohup, or in the background of a shell, these are ignored, and every program inherits that: tests send them.
    if signal.getsignal(sent) == signal.SIG_IGN:
        signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)


COVERED_ELSEWHERE = (  # whole runs, over and over: 2 % of the lines are reached by these alone
    "tests/docs/",
    "tests/encoders/export/test_export.py",
    "tests/encoders/test_finetune.py",
    "tests/examples/",
    "tests/experiment/records/test_profile.py",
    "tests/experiment/test_experiment.py",
    "tests/experiment/test_method_runs.py",
    "tests/experiment/test_own_runs.py",
    "tests/experiment/test_secure_runs.py",
    "tests/faults/",
    "tests/federation/engines/",
    "tests/federation/secure/",
    "tests/federation/test_conformance.py",
    "tests/federation/test_local_training.py",
    "tests/federation/test_model_communication.py",
    "tests/federation/test_no_waiting.py",
    "tests/federation/test_robust_aggregation.py",
    "tests/federation/test_wire.py",
    "tests/networks/test_without_batchnorm.py",
    "tests/paper/test_scales.py",
    "tests/paper/test_smoke.py",
    "tests/reports/test_data_inspection.py",
    "tests/reports/test_run_page.py",
)


def pytest_collection_modifyitems(config, items):
    """Coverage of the whole suite watches the first case of a test, and what others cover not at all.

    Watched, a test takes half as long again, for the same lines.
    """
    if not config.pluginmanager.hasplugin("_cov"):
        return
    seen, whole = set(), [Path(arg).resolve() for arg in config.args] == [Path(__file__).parent]
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seen or (whole and test.startswith(COVERED_ELSEWHERE)):
            item.add_marker("no_cover")
        seen.add(test)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "fedssl-data"))
