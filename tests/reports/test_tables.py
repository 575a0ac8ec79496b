"""What an evaluation found, as tables in a terminal."""

import io

from rich.console import Console

from fedssl.evaluation.results import Result, describe, headline
from fedssl.evaluation.score import Score
from fedssl.reports.tables import clients_tables, headline_table


def result(correct, encoder="global", seed=0, scope="all", protocol="linear"):
    return Result(
        encoder=encoder,
        data="cifar10",
        protocol=protocol,
        variant="paper",
        batchnorm="running",
        test_images=scope,
        seed=seed,
        score=Score(correct, 10),
        settings={},
    )


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


def test_a_result_in_one_line():
    assert describe(result(8)) == (
        "global: linear (paper), BatchNorm running, seed 0: 80.00 % of 10 test images (49.0–94.3)"
    )
    own = "classes of client 1"
    assert describe(result(8, "client 1", None, own)).startswith(f"client 1: linear (paper), BatchNorm running, {own}:")
