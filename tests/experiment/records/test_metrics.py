import csv

from fedssl.experiment.records.metrics import COLUMNS, csv_text, metrics_of
from fedssl.experiment.records.run_folder import RunFolder
from tests.helpers.written_runs import ROUNDS


def test_a_round_in_one_row_of_numbers():
    row = metrics_of(ROUNDS[2])
    assert row == {
        "round": 2,
        "lr": 0.05,
        "loss": 1.5,
        "mu": 0.5,
        "ema_share": 1.0,
        "divergence": 3.0,
        "feature_std": 0.625,
        "knn": 0.375,
        "linear": 0.4,
        "clients": 2,
        "seconds": 4.0,
        "aggregation_seconds": 0.25,
        "images_per_second": 20.0,
        "bytes_up": 2000,
        "bytes_down": 3000,
    }
    assert list(row) == [name for name in COLUMNS if name in row]


def test_what_was_not_measured_is_an_empty_cell(tmp_path):
    folder = RunFolder(tmp_path)
    for record in ROUNDS:
        folder.append_round(record)
    assert (tmp_path / "metrics.csv").read_text() == csv_text(ROUNDS), "row by row as all at once"
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert len(lines) == 4
    first, second, third = csv.DictReader(lines)
    assert (first["round"], first["knn"], first["loss"], first["mu"]) == ("0", "0.25", "", "")
    assert (second["loss"], second["mu"], second["ema_share"], second["divergence"]) == ("2.5", "", "0.0", "")
    assert (third["mu"], third["divergence"], third["bytes_down"]) == ("0.5", "3.0", "3000")
