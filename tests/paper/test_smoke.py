"""Every experiment for real at the smallest scale: its first cell, then tables, figures and pages made of the runs."""

import numpy as np
import pytest

from fedssl.experiment.progress.views import QuietView
from fedssl.paper.catalogue import load_studies
from fedssl.paper.comparison import Comparison, markdown
from fedssl.paper.figures import figures_of
from fedssl.paper.forecast import Amounts, Forecast
from fedssl.paper.page import write_page
from fedssl.paper.scales import load_scales
from tests.helpers.html_page import HtmlPage
from tests.helpers.paper_runs import SMOKE, complete, plan_of, write

STUDIES = load_studies()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("name", STUDIES)
def test_the_first_cell_of_every_experiment(name, out):
    study = STUDIES[name]
    row, column = study.rows[0].title, study.columns[0].label
    [run] = plan_of(name, out, rows=[row], columns=[column]).runs.values()
    if not run.finished(SMOKE.evaluation_epochs):
        complete(run)
    comparison = Comparison.of(study, SMOKE, out, 1, [row], [column])
    assert comparison.missing == []
    [result] = comparison.results
    assert result.measured.mean is not None
    assert 0 <= result.measured.mean <= 100
    assert bool(figures_of(comparison)) == bool(study.figure)
    assert study.shows in markdown(comparison)


def test_fedca_is_measured_and_run_like_the_others(out):
    [run] = plan_of(
        "linear-evaluation-full", out, rows=["FedCA, ResNet-18"], columns=["CIFAR-10, Non-IID"]
    ).runs.values()
    assert Forecast(SMOKE.evaluation_epochs).of(run).seconds > 0
    complete(run)
    assert run.finished(SMOKE.evaluation_epochs)


def written(name, out, seeds=2):
    """All runs of an experiment written by hand, with accuracies that differ."""
    for number, run in enumerate(plan_of(name, out, seeds).runs.values()):
        write(run, 0.40 + 0.001 * number)
    return Comparison.of(STUDIES[name], SMOKE, out, seeds)


def test_a_page_of_every_kind_of_figure(tmp_path):
    comparisons = [written(name, tmp_path) for name in ("predictor", "batch-size", "mu-combinations", "divergence")]
    write_page(comparisons, tmp_path / "page.html")
    page = HtmlPage((tmp_path / "page.html").read_text())
    assert page.problems == []
    assert set(page.figures) == {
        "predictor-knn",
        "batch-size",
        "mu-combinations",
        "divergence-divergence",
        "divergence-mu",
    }
    assert page.figures["batch-size"]["drawings"] == 2, "here, and as printed"
    assert page.figures["mu-combinations"]["drawings"] == 1
    assert ("h2", "Table 10: Batch size") in page.headings
    assert any(row[:3] == ("batch size = 16", "68.74", "40.05 ± 0.07 (n = 2)") for row in page.rows)
    assert any(row[0] == "network.name" and row[1] == "convnet" for row in page.rows), "what the scale changes"


def test_markdown_has_the_papers_numbers_beside_ours(tmp_path):
    text = markdown(written("ssl-methods", tmp_path))
    assert (
        "| FedBYOL | 79.44 ± 0.99 | 41.65 ± 0.07 (n = 2) | -37.79 | 57.51 ± 0.09 | 41.85 ± 0.07 (n = 2) | -15.66 |"
        in text
    )
    assert "decided pairs are in the paper's order" in text
    assert "**Missing**" not in text


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    comparison = Comparison.of(STUDIES["lambda"], SMOKE, tmp_path, 3)
    text = markdown(comparison)
    assert "0 of 11 cells are complete with 3 seeds" in text
    assert "- FedEMA (λ), λ = 0.0: no run" in text
    assert figures_of(comparison) == []


def test_tables_stay_narrow(tmp_path):
    """Two columns at a time; where there are more columns than rows the table lies down."""
    tables = Comparison.of(STUDIES["linear-evaluation"], SMOKE, tmp_path, 1).tables()
    assert [(len(table.head), len(table.rows)) for table in tables] == [(7, 6), (7, 6)]
    assert tables[1].head[1] == "CIFAR-100, IID: paper"
    assert tables[1].rows[-1] == ["BYOL (Centralized)", "65.54 ± 0.47", "missing", "–", "–", "–", "–"]
    [table] = Comparison.of(STUDIES["batch-size"], SMOKE, tmp_path, 1).tables()
    assert table.head[1] == "FedBYOL: paper"
    assert table.rows[-1][:2] == ["batch size = 512", "77.74"]


def test_amounts_follow_from_the_settings():
    """The paper's default: 5 clients of 10,000 images, 78 batches of 128, 5 epochs, 100 rounds."""
    paper = load_scales()["paper"]

    def amounts(name, row, column=0):
        study = STUDIES[name]
        [row] = [one for one in study.rows if one.title == row]
        return Amounts.of(paper.configure(study.cell(row, study.columns[column])))

    usual = amounts("ssl-methods", "FedBYOL")
    assert (usual.steps, usual.images) == (78 * 5 * 5 * 100, 78 * 5 * 5 * 100 * 128), "of 10,000 images each"
    assert usual.evaluations == 19 + 2 + 2, "every 5 of 100 rounds but the last, first and last in two modes"
    alone = amounts("linear-evaluation", "Standalone training")
    assert alone.evaluations == 5 * (19 + 2) + 2
    drawn = amounts("client-sampling", "FedBYOL", 4)
    assert drawn.steps == 4 * 2 * 8 * 800, "of 625 images each"
    semi = amounts("semi-supervised", "FedBYOL", 1)
    assert (semi.labelled, semi.steps) == (5000, 70 * 5 * 5 * 100), "of 9,000 images each"
    assert amounts("data-amount", "FedBYOL", 0).steps == 7 * 5 * 5 * 100, "of 1,000 images each"
    assert amounts("linear-evaluation", "BYOL (Centralized)").steps == 390 * 5 * 100, "of 50,000 images"


class Counting(QuietView):
    def __init__(self):
        self.lines = []

    def begin(self, text, pieces):
        self.lines.append(f"{text}: {pieces}")

    def progress(self, text, done, total):
        self.lines.append(text)

    def advance(self, by=1, text=""):
        self.lines.append("done")


def test_a_forecast_measures_each_network_once(tmp_path, monkeypatch):
    from fedssl.paper import forecast as module

    measured = []
    real = module.Speed.measure.__func__
    monkeypatch.setattr(
        module.Speed, "measure", classmethod(lambda cls, config: measured.append(config) or real(cls, config))
    )
    forecast = Forecast(SMOKE.evaluation_epochs)
    plan = plan_of("linear-evaluation", tmp_path, 2, rows=["FedBYOL", "FedEMA (autoscaler"])
    view = Counting()
    forecast.measure(plan.runs.values(), view)
    assert view.lines == ["measuring: 1", "byol with convnet", "done"]
    found = [forecast.of(run) for run in plan.runs.values()]
    assert len(found) == 16, "two rows, four columns, two seeds"
    assert len(measured) == 1
    assert all(one.seconds > 6 and one.disk > 0 and one.images > 0 for one in found)
    assert np.ptp([one.seconds for one in found]) < 2, "the same network and amounts"
    assert forecast.peak_memory() > 1e7
