import io

import pytest
from rich.console import Console

from fedssl.core.errors import FedsslError
from fedssl.core.files import size_text
from fedssl.experiment.records.run_record import RunRecord
from fedssl.reports.compare import Row, duration, parted, results, settings
from fedssl.reports.tables import print_comparison
from tests.helpers.written_runs import CONFIG, ROUNDS, SUMMARY, changed, write_run


def test_settings_that_differ_are_told_from_equal_ones_and_a_missing_one_is_a_dash():
    other = changed(CONFIG, update_rule={"name": "replace"}, seed=1)
    differ, equal = parted(settings([CONFIG, other]))
    assert differ == [
        Row("seed", ("0", "1")),
        Row("update_rule.name", ("fedema", "replace")),
        Row("update_rule.tau", ("0.7", "–")),
    ]
    assert Row("rounds", ("2", "2")) in equal
    assert len(differ) + len(equal) == len(settings([CONFIG, other]))
    assert parted(settings([CONFIG, CONFIG, CONFIG]))[0] == []
    assert parted(settings([CONFIG]))[1] == [], "a run alone has nothing to be folded"


def test_results_of_two_runs(tmp_path):
    records = [
        RunRecord.read(write_run(tmp_path / "a")),
        RunRecord.read(
            write_run(
                tmp_path / "b",
                rounds=ROUNDS[:2],
                summary=changed(
                    SUMMARY,
                    status="interrupted",
                    rounds=1,
                    final={},
                    mean_mu=None,
                    seconds=7.25,
                    evaluation=[entry()],
                ),
            )
        ),
    ]
    assert {row.label: row.values for row in results(records)} == {
        "status": ("finished", "interrupted"),
        "rounds": ("2", "1"),
        "verdict": ("not known", "not known"),  # nobody noted the number of test images
        "kNN, before training": ("25.0 % (BatchNorm running)", "25.0 % (BatchNorm running)"),
        "kNN, trained": ("37.5 % (BatchNorm running)", "30.0 %"),  # interrupted: the last that was measured
        "kNN, gain": ("+12.5 points", "+5.0 points"),
        "linear probe, before training": ("20.0 % (BatchNorm running)", "20.0 % (BatchNorm running)"),
        "linear probe, trained": ("40.0 % (BatchNorm running)", "–"),
        "linear probe, gain": ("+20.0 points", "–"),
        "mean mu": ("0.500", "–"),
        "share of EMA updates": ("50.0 %", "50.0 %"),
        "last loss": ("1.500", "1.500"),
        "time": ("1 min 15 s", "7.2 s"),
        "sent, up + down": ("10.0 kB", "10.0 kB"),
        "knn (paper) on cifar10, global, BatchNorm running": ("–", "50.0 % (40.0–60.0 %)"),
    }


def test_spread_over_standalone_clients_is_shown(tmp_path):
    summary = changed(SUMMARY, final={"knn": 0.4, "knn_sd": 0.02})
    (row,) = [
        r for r in results([RunRecord.read(write_run(tmp_path / "a", summary=summary))]) if "kNN, trained" in r.label
    ]
    assert row.values == ("40.0 ± 2.0 % (BatchNorm running)",)


def entry(**changes):
    """An entry as `fedssl evaluate` puts it into summary.json; tests/test_report.py has real ones."""
    named = {"encoder": "global", "data": "cifar10", "protocol": "knn", "variant": "paper", "batchnorm": "running"}
    numbers = {"accuracy": 0.5, "sd": None, "interval_95": [0.4, 0.6], "seeds": 1, "clients": None, "n": 100}
    return named | {"test_images": "all"} | numbers | changes


@pytest.mark.parametrize(
    ("changes", "label", "text"),
    [
        ({}, "knn (paper) on cifar10, global, BatchNorm running", "50.0 % (40.0–60.0 %)"),
        (
            {"protocol": "linear", "sd": 0.012, "interval_95": None, "seeds": 3},
            "linear (paper) on cifar10, global, BatchNorm running",
            "50.0 ± 1.2 % (3 seeds)",
        ),
        (
            {"encoder": "clients", "test_images": "own classes", "sd": 0.1, "interval_95": None, "clients": 5},
            "knn (paper) on cifar10, clients, own classes, BatchNorm running",
            "50.0 ± 10.0 % (5 clients)",
        ),
    ],
)
def test_evaluation_entries(tmp_path, changes, label, text):
    record = RunRecord.read(write_run(tmp_path / "run", summary=changed(SUMMARY, evaluation=[entry(**changes)])))
    (row,) = [row for row in results([record]) if row.label == label]
    assert row.values == (text,)


def test_table_on_the_screen(tmp_path):
    screen = io.StringIO()
    records = [
        RunRecord.read(write_run(tmp_path / "[bold]a")),
        RunRecord.read(write_run(tmp_path / "b", config=changed(CONFIG, update_rule__tau=0.5))),
    ]
    print_comparison(records, console=Console(file=screen, width=100))
    lines = screen.getvalue().splitlines()
    assert any("[bold]a" in line and " b " in line for line in lines), "a folder's name is no markup"
    assert any(line.split() == ["update_rule.tau", "0.7", "0.5"] for line in lines)
    assert "12 settings are equal in all runs and not shown: --all shows them." in lines
    assert "kNN" not in screen.getvalue(), "results that are equal are folded too"
    screen.truncate(0)
    print_comparison(records, everything=True, console=Console(file=screen, width=100))
    lines = screen.getvalue().splitlines()
    assert any(line.split() == ["kNN,", "gain", "+12.5", "points", "+12.5", "points"] for line in lines)
    assert any(line.split() == ["seed", "0", "0"] for line in lines)
    assert "not shown" not in screen.getvalue()
    screen.truncate(0)
    print_comparison(records[:1] * 2, console=Console(file=screen, width=100))
    assert "The settings are the same in all runs." in screen.getvalue()
    assert "The results are the same in all runs." in screen.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (8.24, "8.2 s"), (185, "3 min 05 s"), (8040, "2 h 14 min"), (59.9, "59.9 s")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (2500, "2.5 kB"), (3e6, "3.0 MB"), (4.2e9, "4.2 GB")]
)
def test_sizes(count, text):
    assert size_text(count) == text


# --- reading what a run wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "rounds.jsonl",
            '{"round": 0, "clients": []}\n{"round": 1, "cli',
            r"rounds\.jsonl, line 2: damaged .*: remove the line",
        ),
        ("rounds.jsonl", "[1]\n", r"rounds\.jsonl, line 1: damaged \(not a JSON object\)"),
        ("rounds.jsonl", '{"round": 0}\n', r"rounds\.jsonl, line 1: not the record of a round"),
        ("rounds.jsonl", None, r"not a run folder \(rounds\.jsonl is missing\)"),
        ("summary.json", "{", r"summary\.json: cannot be read"),
        ("summary.json", "[]", r"summary\.json: cannot be read \(not a JSON object\)"),
        ("summary.json", None, r"not a run folder \(summary\.json is missing\)"),
        ("config.toml", "rounds = ", r"config\.toml: not readable as TOML"),
        ("config.toml", "rounds = 3", r"config\.toml: not the config of a run \(no table \[method\]\)"),
        ("config.toml", None, r"not a run folder \(config\.toml is missing\)"),
        ("environment.json", b"\xff\xfe", r"environment\.json: damaged, not UTF-8"),
        ("rounds.jsonl", b"\xff\xfe", r"rounds\.jsonl, line 1: damaged"),
    ],
)
def test_damage_is_one_line_that_names_the_file(tmp_path, name, content, message):
    run = write_run(tmp_path / "run")
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FedsslError, match=message) as error:
        RunRecord.read(run)
    assert "\n" not in str(error.value)


def test_a_run_without_environment_is_read(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "environment.json").unlink()
    assert RunRecord.read(run).environment == {}
