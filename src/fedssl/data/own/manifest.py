"""A manifest: a CSV or Parquet table with a line for each image, its path, and if known its client, split and label."""

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.data.dataset import Refusal
from fedssl.data.own.folder import Files
from fedssl.data.own.found import Found, Part, Sample, by_number, printable

ENDINGS = (".csv", ".parquet")
SPLITS: dict[str, Part] = {
    "": "train",
    "train": "train",
    "eval_train": "eval_train",
    "eval_test": "eval_test",
    "test": "eval_test",
}
UNLABELLED = ("", "nan", "NaN", "None", "null", "NULL")  # what programs write for "no value"; "none" may be a class
Row = Mapping[str, str]


def find_in_manifest(path: Path, columns: Mapping[str, str], *, labels: bool = True) -> Found:
    """The images that a table names, in its order; paths are below the table's own folder.

    `columns` gives the names of the columns path, client, split and label.
    """
    root = os.path.realpath(path.parent)
    samples, real, lines, refused, clients = list[Sample](), list[str](), list[int](), list[Refusal](), set[str]()
    for line, row in _rows(path, columns["path"]):
        client = _checked_client(row.get(columns["client"], ""), f"{path}, line {line}")
        name, split = row.get(columns["path"], ""), row.get(columns["split"], "")
        if split not in SPLITS:
            known = ", ".join(filter(None, SPLITS))
            raise FedsslError(f"{printable(path)}, line {line}: split {split!r} is none of {known}")
        if client and SPLITS[split] == "train":
            clients.add(client)
        place, reason = _inside(root, name)
        if reason:
            refused.append(Refusal(printable(name) or f"line {line}", reason, client))
            continue
        real.append(place)
        lines.append(line)
        samples.append(Sample(printable(name), client or None, _label(row, columns, labels), SPLITS[split]))
    used = _with_labels_like_others(samples, lines, refused)
    samples, real = [samples[number] for number in used], [real[number] for number in used]
    _check_all_or_none(path, samples)
    return Found(printable(path), samples, Files(real), refused=refused, clients=tuple(sorted(clients, key=by_number)))


def _label(row: Row, columns: Mapping[str, str], labels: bool) -> str | None:
    label = row.get(columns["label"], "").strip() if labels else ""
    return None if label in UNLABELLED else label


def _with_labels_like_others(samples: list[Sample], lines: list[int], refused: list[Refusal]) -> list[int]:
    """The numbers of those to use: one without a label, where others of its split have one, would stop evaluation."""
    labelled = {sample.part for sample in samples if sample.label is not None}
    missing = [number for number, one in enumerate(samples) if one.label is None and one.part in labelled]
    for number in missing:
        reason = f"line {lines[number]} has no label, but others of its split have (data.labels=false passes over all)"
        refused.append(Refusal(samples[number].name, reason, samples[number].client or ""))
    return sorted(set(range(len(samples))) - set(missing))


def _inside(root: str, name: str) -> tuple[str, str]:
    """(real path, "") of a file below the root, else ("", why it is not used)."""
    if not name:
        return "", "the line names no file"
    try:
        place = os.path.realpath(os.path.join(root, name))  # noqa: PTH118 - any name there is must pass
        if os.path.commonpath([root, place]) != root or place == root:
            return "", "leaves the folder of the manifest"
        if not os.path.lexists(place):
            return "", "no such file"
    except (OSError, ValueError) as error:
        return "", f"cannot be looked at: {getattr(error, 'strerror', None) or error}"
    return place, ""


def _checked_client(name: str, where: str) -> str:
    if name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        raise FedsslError(f"{printable(where)}: {printable(name)!r} is no name for a client: leave out slashes")
    return name


def _check_all_or_none(path: Path, samples: list[Sample]) -> None:
    """A training image without a client, where others have one, would be at nobody."""
    held = [sample.client is not None for sample in samples if sample.part == "train"]
    if any(held) and not all(held):
        nobody = next(s for s in samples if s.part == "train" and s.client is None)
        raise FedsslError(f"{printable(path)}: {nobody.name} has no client, but others have: fill in the column")


def _rows(path: Path, needed: str) -> Iterator[tuple[int, Row]]:
    """(line number, texts by column) for each line of the table."""
    try:
        rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
        for line, row in rows:
            if needed not in row:
                raise FedsslError(
                    f"{printable(path)}: it has no column {needed!r}, only {', '.join(map(repr, row))}: the columns "
                    "are path and, where known, client, split, label"
                )
            yield line, row
    except (OSError, csv.Error) as error:
        raise FedsslError(f"{printable(path)}: not readable as a table ({error})") from None


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    # surrogateescape: a path may have bytes that are no UTF-8; -sig: spreadsheets put a mark in front.
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.DictReader(file, restval="", strict=True)
        for row in reader:
            yield reader.line_num, {key.strip(): value.strip() for key, value in row.items() if key is not None}


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    need("parquet", printable(path))
    from pyarrow import ArrowException, parquet

    try:
        line = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                line += 1
                yield line, {key: _text(value) for key, value in row.items()}
    except ArrowException as error:
        raise FedsslError(f"{printable(path)}: not readable as Parquet ({error})") from None


def _text(value: Any) -> str:
    return "" if value is None else str(value)
