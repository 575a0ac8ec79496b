"""One torch thread: two threads on small tensors are ten times slower, and bits depend on the count."""

import signal

import pytest
import torch

torch.set_num_threads(1)
for sent in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
    # Under nohup, or in the background of a shell, these are ignored, and every program inherits that: tests send them.
    if signal.getsignal(sent) == signal.SIG_IGN:
        signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config, items):
    """Coverage watches the first case of every test: watching the others takes half their time for the same lines."""
    if not config.pluginmanager.hasplugin("_cov"):
        return
    seen = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in seen:
            item.add_marker("no_cover")
        seen.add(test)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "fedssl-data"))
