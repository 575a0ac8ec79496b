"""A round in one row of plain numbers: for metrics.csv, for loggers, for curves."""

import csv
import io
import statistics
from collections.abc import Iterable
from typing import Any

from fedssl.evaluation.score import Best

COLUMNS = (
    *("round", "lr", "loss", "mu", "ema_share", "divergence", "feature_std"),
    *("knn", "knn_sd", "knn_reestimated", "linear", "linear_reestimated", "backbone_std"),
    *("clients", "seconds", "aggregation_seconds", "images_per_second", "bytes_up", "bytes_down"),
)


def metrics_of(record: dict[str, Any]) -> dict[str, float]:
    """What is known of a round, in the order of COLUMNS; what was not measured is left out."""
    clients = record["clients"]
    row: dict[str, Any] = {name: record.get(name) for name in COLUMNS}
    row["clients"] = len(clients)
    for name in ("divergence", "feature_std"):
        known = [client[name] for client in clients if client.get(name) is not None]
        row[name] = statistics.fmean(known) if known else record.get(name)  # of secure sums the round knows the mean
    for name in ("bytes_up", "bytes_down"):
        row[name] = sum(client.get(name, 0) for client in clients) + record.get("at_sites", {}).get(name, 0)
    return {name: value for name, value in row.items() if value is not None}


def best_metric(record: dict[str, Any], name: str) -> float | None:
    """A number of a round; of an accuracy that was taken in both BatchNorm modes, the better one."""
    best = Best.of(record, name)
    return best.accuracy if best else metrics_of(record).get(name)


def csv_text(records: Iterable[dict[str, Any]]) -> str:
    """The header and a row for each record; an empty cell was not measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(metrics_of(record) for record in records)
    return text.getvalue()
