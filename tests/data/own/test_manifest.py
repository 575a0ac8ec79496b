import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedssl.core.errors import FedsslError
from fedssl.data.own.manifest import find_in_manifest
from tests.helpers.pictures import noise, write

COLUMNS = {"path": "path", "client": "client", "split": "split", "label": "label"}


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "sub/b.png", "c.png"):
        write(tmp_path / "data" / name, noise())
    return tmp_path / "data"


def manifest(folder, text, **options):
    path = folder / "images.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return find_in_manifest(path, COLUMNS, **options)


def rows(found):
    return [(s.name, s.client, s.label, s.part) for s in found.samples]


def test_all_columns_in_the_order_of_the_table(folder):
    found = manifest(
        folder,
        "label,path,client,split\ncat,c.png,site 2,train\n dog , a.png , site 10 ,\ncat,sub/b.png,,test\n",
    )
    assert rows(found) == [
        ("c.png", "site 2", "cat", "train"),
        ("a.png", "site 10", "dog", "train"),
        ("sub/b.png", None, "cat", "eval_test"),
    ]
    assert found.clients == ("site 2", "site 10")
    assert found.refused == []


def test_a_client_of_test_images_alone_is_none_and_one_whose_files_are_gone_is(folder):
    found = manifest(folder, "path,client,split\na.png,x,train\nc.png,tester,test\ngone.png,y,train\n")
    assert found.clients == ("x", "y")


def test_paths_alone_and_a_mark_that_spreadsheets_write(folder):
    assert rows(manifest(folder, b"\xef\xbb\xbfpath\na.png\n")) == [("a.png", None, None, "train")]


def test_labels_may_be_left_out_of_account(folder):
    assert rows(manifest(folder, "path,label\na.png,cat\n", labels=False)) == [("a.png", None, None, "train")]


@pytest.mark.parametrize("nothing", ["", "  ", "NaN", "nan", "None", "null", "NULL"])
def test_a_line_without_a_label_among_labelled_ones_is_refused_with_its_number(folder, nothing):
    (folder / "c.png").write_bytes(b"third")
    found = manifest(folder, f"path,client,label\na.png,x,cat\nsub/b.png,x,{nothing}\nc.png,y,none\n")
    assert rows(found) == [("a.png", "x", "cat", "train"), ("c.png", "y", "none", "train")]
    assert [(one.file, one.client) for one in found.refused] == [("sub/b.png", "x")]
    assert found.refused[0].reason.startswith("line 3 has no label, but others of its split have")
    with found.source.opened() as read, read(1) as second:
        assert second.read() == b"third", "images stay with their lines"


def test_a_parquet_null_or_nan_is_no_label_either(folder):
    table = pa.table({"path": ["a.png", "sub/b.png", "c.png"], "label": [1.0, float("nan"), None]})
    pq.write_table(table, folder / "images.parquet")
    found = find_in_manifest(folder / "images.parquet", COLUMNS)
    assert rows(found) == [("a.png", None, "1.0", "train")]
    assert [one.reason.split(" has")[0] for one in found.refused] == ["line 2", "line 3"]
    pq.write_table(pa.table({"path": ["a.png", "c.png"], "label": ["x", " "]}), folder / "images.parquet")
    assert [one.file for one in find_in_manifest(folder / "images.parquet", COLUMNS).refused] == ["c.png"]


def test_a_split_without_any_label_is_unlabelled_and_whole(folder):
    found = manifest(folder, "path,split,label\na.png,train,\nc.png,train,NaN\nsub/b.png,test,cat\n")
    assert rows(found) == [
        ("a.png", None, None, "train"),
        ("c.png", None, None, "train"),
        ("sub/b.png", None, "cat", "eval_test"),
    ]
    assert found.refused == []
    assert manifest(folder, "path,label\na.png,cat\nc.png,\n", labels=False).refused == []


def test_other_column_names(folder):
    path = folder / "images.csv"
    path.write_text("file,site,kind\na.png,x,cat\n")
    found = find_in_manifest(path, {"path": "file", "client": "site", "split": "split", "label": "kind"})
    assert rows(found) == [("a.png", "x", "cat", "train")]


def test_parquet_is_the_same_table(folder):
    table = pa.table({"path": ["a.png", "c.png"], "client": [1, 2], "split": ["train", None], "label": ["x", "y"]})
    pq.write_table(table, folder / "images.parquet")
    found = find_in_manifest(folder / "images.parquet", COLUMNS)
    assert rows(found) == [("a.png", "1", "x", "train"), ("c.png", "2", "y", "train")]


def test_files_that_are_missing_or_elsewhere_are_refused_and_named(folder):
    write(folder.parent / "secret.png", noise())
    (folder / "link.png").symlink_to("../secret.png")
    listed = ["a.png", "gone.png", "../secret.png", "sub/../../secret.png", "/etc/passwd", "link.png", "", "x" * 5000]
    found = manifest(folder, "path,client\n" + "".join(f"{name},s\n" for name in listed))
    assert rows(found) == [("a.png", "s", None, "train")]
    assert [(one.file[:20], one.reason) for one in found.refused] == [
        ("gone.png", "no such file"),
        ("../secret.png", "leaves the folder of the manifest"),
        ("sub/../../secret.png", "leaves the folder of the manifest"),
        ("/etc/passwd", "leaves the folder of the manifest"),
        ("link.png", "leaves the folder of the manifest"),
        ("line 8", "the line names no file"),
        ("x" * 20, found.refused[-1].reason),
    ]
    assert {one.client for one in found.refused} == {"s"}


def test_an_absolute_path_inside_is_inside(folder):
    assert len(manifest(folder, f"path\n{folder}/a.png\n").samples) == 1


def test_names_that_are_no_utf8(folder):
    (folder / "a.png").rename(os.fsdecode(os.fsencode(folder) + b"/\xff.png"))
    found = manifest(folder, b"path\n\xff.png\n")
    assert rows(found) == [(r"\xff.png", None, None, "train")]
    with found.source.opened() as read:
        read(0).close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,client\na.png,x\n", r"images\.csv: it has no column 'path', only 'file', 'client'"),
        ("path,split\na.png,tset\n", r"images\.csv, line 2: split 'tset' is none of train, eval_train"),
        ("path,client\na.png,../x\n", r"images\.csv, line 2: '\.\./x' is no name for a client"),
        ("path,client\na.png,..\n", r"is no name for a client"),
        ("path,client\na.png,x\nc.png,\n", r"c\.png has no client, but others have"),
        ('path\n"a.png\n', r"not readable as a table"),
    ],
)
def test_tables_that_cannot_be_meant(folder, text, message):
    with pytest.raises(FedsslError, match=message):
        manifest(folder, text)


def test_a_path_that_cannot_be(folder):
    pq.write_table(pa.table({"path": ["a.png", "b\0c.png"]}), folder / "images.parquet")
    found = find_in_manifest(folder / "images.parquet", COLUMNS)
    assert len(found.samples) == 1
    assert "null byte" in found.refused[0].reason


def test_an_empty_table_has_no_images(folder):
    assert manifest(folder, "path,client\n").samples == []


def test_what_is_no_parquet(folder):
    (folder / "x.parquet").write_bytes(b"PAR1 rubbish")
    with pytest.raises(FedsslError, match="not readable as Parquet"):
        find_in_manifest(folder / "x.parquet", COLUMNS)


def test_without_pyarrow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FedsslError, match=r'pip install "fedssl\[parquet\]"'):
        find_in_manifest(folder / "x.parquet", COLUMNS)
