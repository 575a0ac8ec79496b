import io

from rich.console import Console

from fedssl.evaluation.results import Result, headline
from fedssl.evaluation.score import Score
from fedssl.experiment.progress import evaluation_view
from fedssl.experiment.progress.evaluation_view import (
    LiveEvaluationView,
    PlainEvaluationView,
    clients_tables,
    headline_table,
    make_evaluation_view,
)


def result(correct, encoder="global", seed=0, scope="all", protocol="linear"):
    return Result(encoder, "cifar10", protocol, "paper", "running", scope, seed, Score(correct, 10), {})


def drawn(*tables):
    console = Console(file=io.StringIO(), width=80)
    for table in tables:
        console.print(table)
    return console.file.getvalue()


def test_table_of_every_kind_of_entry_fits_a_terminal():
    results = [
        result(8, protocol="knn", seed=None),
        *(result(c, seed=s) for s, c in enumerate((7, 8, 9))),
        *(result(5, f"client {k}", scope=f"classes of client {k}") for k in range(2)),
    ]
    text = drawn(headline_table(headline(results)))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["global", "knn", "running", "80.00", "49.0–94.3"],
        ["global", "linear", "running", "80.00 ± 10.00", "3 seeds"],
        ["clients, own classes", "linear", "running", "50.00 ± 0.00", "2 clients"],
    ]
    assert "Accuracy on 10 test images of cifar10 (paper protocols, 3 seeds)" in text


def test_table_client_by_client():
    own = "classes of client 0"
    results = [result(7), result(9), result(4, scope=own), result(5, "client 0"), result(6, "client 0", scope=own)]
    (table,) = clients_tables(results)
    (row,) = [line for line in drawn(table).splitlines() if "client 0" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["client 0", "80.00", "50.00", "40.00", "60.00"]


def test_plain_lines(capsys, monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(evaluation_view.time, "monotonic", lambda: next(clock))
    with PlainEvaluationView() as view:
        view.start(3)
        view.watch("features", 1, 2)
        view.watch("features", 2, 2)
        view.found(result(8))
        view.finished_piece()
    assert capsys.readouterr().out.splitlines() == [
        "features: 20 s",
        "global: linear (paper), BatchNorm running, seed 0: 80.00 % of 10 test images (49.0–94.3)",
        "1 of 3 done, about 120 s left",
    ]


def test_live_bars_and_results():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveEvaluationView(console) as view:
        view.start(2)
        view.watch("global: linear-probe, seed 0", 1, 200)
        view.watch("global: linear-probe, seed 0", 2, 200)
        view.found(result(8))
        view.finished_piece()
        view.bars.refresh()
    text = console.file.getvalue()
    for words in ("evaluation", "1/2", "global: linear-probe, seed 0", "2/200", "80.00 % of 10 test images"):
        assert words in text


def test_not_a_terminal_gives_plain_lines():
    assert isinstance(make_evaluation_view(), PlainEvaluationView)
