"""The page of the paper's experiments in a real browser; `make check-report` runs this."""

import pytest

from fedssl.paper.catalogue import load_studies
from fedssl.paper.comparison import Comparison
from fedssl.paper.page import write_page
from scripts.check_report import Browser, problems
from tests.helpers.paper_runs import SMOKE, plan_of, write

pytestmark = pytest.mark.browser


def test_nothing_is_wrong_with_the_page(tmp_path):
    comparisons = []
    for name in ("linear-evaluation", "predictor", "batch-size", "mu-combinations"):
        for run in plan_of(name, tmp_path).runs.values():
            write(run, 0.5)
        comparisons.append(Comparison.of(load_studies()[name], SMOKE, tmp_path, 1))
    write_page(comparisons, tmp_path / "page.html")
    with Browser() as browser:
        assert problems(browser, tmp_path / "page.html") == []
