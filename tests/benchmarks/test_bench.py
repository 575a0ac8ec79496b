import json

import pytest

from benchmarks import bench
from benchmarks.measuring import faster, within


def fails():
    raise SystemExit("no port is free")


@pytest.fixture
def parts(monkeypatch):
    made = {
        "quick": lambda: [faster("1 quick", "slow", "s", 2.0, 1.0, 1.5)],
        "broken": fails,
        "dear": lambda: [within("2 dear", "limit", "s", 1.0, 3.0, 1)],
    }
    monkeypatch.setattr(bench, "PARTS", made)
    monkeypatch.setattr(bench, "HOPS", {"dear": lambda: {"clients": 3}})


def test_a_part_that_fails_costs_its_own_rows_and_the_record_says_what_was_run(parts, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--only", "quick,broken,dear", "--out", str(tmp_path)])
    bench.main()
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["target"], row["passed"]) for row in record["rows"]] == [
        ("1 quick", True),
        ("broken", None),
        ("2 dear", False),
    ]
    assert record["rows"][1]["against"] == "failed: SystemExit"
    assert (record["command"], len(record["date"])) == ("python -m benchmarks.bench", len("2026-01-01"))
    assert len(record["environment"]["load_before_and_after"]) == 2
    assert record["hops"] == {"clients": 3}
    assert (tmp_path / "bench.png").stat().st_size > 1000
    assert "no port is free" in capsys.readouterr().out


def test_a_run_that_was_stopped_keeps_what_it_had_measured_with_the_same_code(parts, tmp_path, monkeypatch):
    asked = []

    def stops():
        raise KeyboardInterrupt

    def counted():
        asked.append("quick")
        return [faster("1 quick", "slow", "s", 2.0, 1.0, 1.5)]

    arguments = ["bench", "--out", str(tmp_path), "--only"]
    monkeypatch.setattr(bench, "PARTS", bench.PARTS | {"quick": counted, "stops": stops})
    monkeypatch.setattr("sys.argv", [*arguments, "quick,broken,stops,dear"])
    with pytest.raises(KeyboardInterrupt):
        bench.main()
    monkeypatch.setattr("sys.argv", [*arguments, "quick,broken,dear"])
    bench.main()
    assert asked == ["quick"]
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["target"] for row in record["rows"]] == ["1 quick", "broken", "2 dear"]
    assert [*record["seconds"]] == ["quick", "broken", "dear"]
    bench.main()
    assert asked == ["quick"] * 2, "a run that came to its end is not resumed"
    (tmp_path / "stopped.json").write_text(json.dumps({"code": "of another day", "parts": {"quick": {}}}))
    bench.main()
    assert asked == ["quick"] * 3


def test_a_name_that_is_no_part_is_refused(parts, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--only", "quick,slow"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "no part is called 'slow'; known: quick, broken, dear" in capsys.readouterr().err
