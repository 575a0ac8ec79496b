import pytest
import torch

from benchmarks import gpu


def test_the_script_runs_on_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--cpu"])
    assert gpu.main() == 0
    title, head, *lines, relation, _ = capsys.readouterr().out.splitlines()
    assert "within 5 % of bare steps and views" in relation
    assert title.startswith("CPU, torch")
    assert head.split()[:3] == ["images/s", "views", "steps"]
    assert [line.split()[0] for line in lines] == ["fp32", "bf16"]
    for line in lines:
        assert float(line.split()[1].replace(",", "")) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 1
    assert "no GPU here" in capsys.readouterr().err
