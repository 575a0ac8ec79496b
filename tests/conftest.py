"""One torch thread: two threads on small tensors are ten times slower, and bits depend on the count."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "fedssl-data"))
