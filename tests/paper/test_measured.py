"""Numbers of runs, their mean and spread, and whether their order is the paper's; all by hand."""

import math

import pytest

from fedssl.paper.catalogue import Printed, load_studies
from fedssl.paper.comparison import Comparison, measured_text
from fedssl.paper.measured import Measured, Result, results_of, rounds_to
from fedssl.paper.order import agreement
from tests.helpers.paper_runs import plan_of, write
from tests.helpers.written_runs import ROUNDS, client

STUDIES = load_studies()


def cells(name, row=None):
    return [cell for cell in STUDIES[name].cells() if row in (None, cell.row.title)]


def test_mean_sd_and_standard_error():
    measured = Measured((40.0, 44.0), seeds=3, images=10_000)
    assert measured.mean == 42
    assert measured.sd == pytest.approx(math.sqrt(8))
    assert measured.standard_error == pytest.approx(2.0)
    single = Measured((50.0,), seeds=3, images=10_000)
    assert single.sd is None
    assert single.standard_error == pytest.approx(0.5), "of 10,000 images, half of them right"
    assert Measured((), 3).mean is None
    assert Measured((10.0, None), 2).mean is None, "one run did not reach the target"


def test_a_cells_number_is_the_mean_over_seeds(tmp_path):
    plan = plan_of("ssl-methods", tmp_path, seeds=2, rows=["FedBYOL"], columns=["CIFAR-10"])
    first, second = plan.runs.values()
    write(first, 0.5)
    cell = cells("ssl-methods", "FedBYOL")[0]
    [result] = results_of(plan, [cell], 2)
    assert (result.measured.values, result.measured.mean) == ((50.0,), 50.0)
    write(second, 0.52)
    [result] = results_of(plan, [cell], 2)
    assert result.measured.mean == 51
    assert result.difference == pytest.approx(51 - 79.44)
    assert measured_text(result.measured, cell) == "51.00 ± 1.41 (n = 2)"


def test_standalone_is_the_mean_over_clients_with_its_spread(tmp_path):
    plan = plan_of("linear-evaluation", tmp_path, rows=["Standalone"], columns=["CIFAR-10, Non-IID"])
    [run] = plan.runs.values()
    write(run, 0.4, encoder="clients", sd=0.03)
    cell = cells("linear-evaluation", "Standalone training")[1]
    [result] = results_of(plan, [cell], 1)
    assert result.measured.over_clients == pytest.approx(3.0)
    assert measured_text(result.measured, cell) == "40.00 (n = 1), clients ± 3.00"


def test_knn_and_divergence_come_from_the_runs_records(tmp_path):
    plan = plan_of("predictor", tmp_path, rows=["FedBYOL"])
    [run] = plan.runs.values()
    write(run, 0.0)
    [result] = results_of(plan, cells("predictor", "FedBYOL"), 1)
    assert result.measured.values == (37.5,)
    plan = plan_of("divergence", tmp_path, rows=["FedEMA (autoscaler, τ = 0.7)"])
    [run] = plan.runs.values()
    write(run, 0.0)
    [result] = results_of(plan, cells("divergence")[:1], 1)
    assert result.measured.values == (3.0,), "the mean of 2 and 4 in the last round"


def test_rounds_to_a_target():
    rounds = [
        {"round": 0, "clients": [], "knn": 0.9},
        {"round": 1, "clients": [client(0)]},
        {"round": 2, "clients": [client(0)], "knn": 0.3},
        {"round": 3, "clients": [client(0)], "knn": 0.4},
    ]
    assert rounds_to(rounds, 30) == 2, "the random encoder does not count"
    assert rounds_to(rounds, 35) == 3
    assert rounds_to(rounds, 41) is None


def test_rounds_and_epochs_to_the_scales_target(tmp_path):
    """smoke: targets are 5 % and 100 %, E = 20 becomes 4."""
    plan = plan_of("communication", tmp_path, columns=["E = 20"])
    [run] = plan.runs.values()
    write(run, 0.0, rounds=ROUNDS)
    wanted = [cell for cell in cells("communication") if "E = 20" in cell.column.label]
    results = {(r.cell.row.label, r.cell.column.label): r for r in results_of(plan, wanted, 1)}
    assert results["70 %", "rounds, E = 20"].measured.values == (1.0,)
    assert results["70 %", "epochs, E = 20"].measured.values == (4.0,)
    missed = results["80 %", "rounds, E = 20"]
    assert missed.measured.values == (None,)
    assert measured_text(missed.measured, missed.cell) == "not reached by 1 (n = 1)"


def made(numbers, name="ssl-methods", sd=0.1):
    """Results of the first column: {row: (paper, ours)}, three seeds around ours."""
    found = []
    for cell in cells(name):
        if cell.column is STUDIES[name].columns[0] and cell.row.title in numbers:
            paper, ours = numbers[cell.row.title]
            values = (ours - sd, ours, ours + sd)
            found.append(Result(cell, Printed(str(paper), paper, 0.1), Measured(values, 3)))
    return found


def test_pairs_in_the_papers_order_are_counted():
    """Paper: SimCLR 78 < MoCo 79 < BYOL 80. Ours: 40 < 43 > 42."""
    numbers = {"FedSimCLR": (78.0, 40.0), "FedMoCoV1": (79.0, 43.0), "FedBYOL": (80.0, 42.0)}
    found = agreement(made(numbers), ["rows"])
    assert (found.same, found.opposite, found.too_close) == (2, 1, 0)
    assert found.disagreements == ("CIFAR-10: FedMoCoV1 against FedBYOL (paper -1.00, here +1.00)",)
    assert found.sentence() == "2 of 3 decided pairs are in the paper's order."


def test_pairs_within_the_noise_are_counted_apart():
    """Ours: sd 0.1 of three seeds is a standard error of 0.058 each, 0.082 of a difference; twice that is 0.163."""
    near = {"FedSimCLR": (78.0, 40.0), "FedMoCoV1": (79.0, 40.16)}
    assert agreement(made(near), ["rows"]).too_close == 1
    far = {"FedSimCLR": (78.0, 40.0), "FedMoCoV1": (79.0, 40.17)}
    assert agreement(made(far), ["rows"]).same == 1
    papers = {"FedSimCLR": (78.0, 40.0), "FedMoCoV1": (78.14, 45.0)}
    assert agreement(made(papers), ["rows"]).too_close == 1, "the paper's spreads are 0.1 and 0.1, together 0.141"
    text = agreement(made(papers), ["rows"]).sentence()
    assert text.endswith("1 of 1 comparable pairs are closer than the noise and not counted.")


def test_columns_are_compared_where_their_order_means_something():
    study = STUDIES["rounds"]
    found = [
        Result(cell, cell.printed, Measured((10.0 + number, 10.0 + number), 2))
        for number, cell in enumerate(cells("rounds", "FedBYOL"))
    ]
    assert agreement(found, ["rows"]).comparable == 0
    assert agreement(found, study.order).same == 6


def test_a_comparison_says_what_is_missing_and_left_out(tmp_path):
    from fedssl.paper.scales import load_scales

    cpu = load_scales()["cpu"]
    comparison = Comparison.of(STUDIES["client-sampling"], cpu, tmp_path, 2, ["FedBYOL"])
    assert len(comparison.missing) == 4
    assert comparison.missing[0] == "FedBYOL, 5/20, CIFAR-10, IID: no run"
    assert len(comparison.left_out) == 1
    assert comparison.left_out[0].startswith("80 clients would have 125")
    assert "rounds 400 → 80 (20 rounds stand for 100)" in comparison.carried_over
    assert comparison.sentences()[1].startswith("0 of 8 cells are complete with 2 seeds")
    assert comparison.sentences()[-1] == "Order: so far no two cells have a number here and in the paper."
    alone = Comparison.of(STUDIES["client-sampling"], cpu, tmp_path, 1, ["FedBYOL"])
    assert alone.sentences()[1] == "0 of 8 cells are complete with one seed; there is no spread."
