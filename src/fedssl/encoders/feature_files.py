"""Names and features on disk, written piece by piece: Parquet in row groups, or an .npz with plain arrays inside."""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.core.files import replacing

Array = np.ndarray[Any, np.dtype[Any]]
Write = Callable[[Sequence[str], Array], None]
Writer = Callable[[Path, int, dict[str, Any]], AbstractContextManager[Write]]
ROWS = 4096  # of a row group: enough to be read quickly, few enough for any memory


@contextmanager
def parquet_writer(path: Path, size: int, about: dict[str, Any]) -> Iterator[Write]:
    """Columns `name` and `features` (a list of `size` floats); `about` is metadata of the table under "fedssl"."""
    import pyarrow
    from pyarrow import parquet

    fields = [("name", pyarrow.string()), ("features", pyarrow.list_(pyarrow.float32(), size))]
    schema = pyarrow.schema(fields).with_metadata({"fedssl": json.dumps(about)})
    names: list[str] = []
    parts: list[Array] = []

    def flush() -> None:
        if names:
            flat = pyarrow.array(np.concatenate(parts).reshape(-1))
            columns = [pyarrow.array(names, pyarrow.string()), pyarrow.FixedSizeListArray.from_arrays(flat, size)]
            table.write_table(pyarrow.table(columns, schema=schema))
            names.clear()
            parts.clear()

    def write(more: Sequence[str], features: Array) -> None:
        names.extend(more)
        parts.append(features)
        if len(names) >= ROWS:
            flush()

    with replacing(path) as unfinished, parquet.ParquetWriter(unfinished, schema) as table:
        yield write
        flush()


@contextmanager
def npz_writer(path: Path, size: int, about: dict[str, Any]) -> Iterator[Write]:
    """Arrays `names`, `features` (N x d) and `about` (a text).

    An array's head says how long it is, which is known at the end: features wait in a file, names in memory.
    """
    names: list[str] = []
    with replacing(path) as unfinished, tempfile.TemporaryFile(dir=path.parent) as waiting:

        def write(more: Sequence[str], features: Array) -> None:
            names.extend(more)
            waiting.write(np.ascontiguousarray(features, "<f4").data)

        yield write
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            _put(archive, "names", np.array(names, dtype=np.str_))
            _put(archive, "about", np.array(json.dumps(about)))
            with archive.open("features.npy", "w", force_zip64=True) as inside:
                head = {"descr": "<f4", "fortran_order": False, "shape": (len(names), size)}
                np.lib.format.write_array_header_2_0(inside, head)
                waiting.seek(0)
                shutil.copyfileobj(waiting, inside, 1 << 20)


def _put(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(f"{name}.npy", "w") as inside:
        np.lib.format.write_array(inside, array, allow_pickle=False)


WRITERS: dict[str, Writer] = {
    ".parquet": parquet_writer,
    ".npz": npz_writer,
}
