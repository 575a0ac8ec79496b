"""Observers of the caller: told of start, rounds and end; what one raises ends a run that can be resumed."""

import pytest

import fedssl
from tests.helpers.small import TINY


class Book(fedssl.Observer):
    def __init__(self, stop_after=None):
        self.seen, self.stop_after = [], stop_after

    def start(self, run):
        self.seen.append(("start", run.done))

    def round_finished(self, record, outcome):
        self.seen.append((record["round"], outcome is not None))
        if record["round"] == self.stop_after:
            raise StopIteration

    def finish(self, summary):
        self.seen.append(summary["status"])


def test_an_observer_may_end_a_run_that_the_same_call_resumes(tmp_path):
    experiment, first, second = fedssl.load("smoke", TINY | {"rounds": 2}), Book(stop_after=1), Book()
    with pytest.raises(StopIteration):
        experiment.run(tmp_path / "run", observers=[first])
    assert first.seen == [("start", None), (0, False), (1, True), "interrupted"]
    report = experiment.run(tmp_path / "run", observers=[second])
    assert second.seen == [("start", 1), (2, True), "finished"]
    whole = experiment.run(tmp_path / "whole")
    assert report.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_report_may_be_given_for_its_folder(tmp_path):
    report = fedssl.load("smoke", TINY | {"rounds": 1}).run(tmp_path / "run")
    assert fedssl.load_encoder(report).feature_size == fedssl.load_encoder(tmp_path / "run").feature_size
    assert fedssl.evaluate(report, ["knn"], batchnorm="running")[0].encoder == "global"
