"""The one reader of JSON lines: a file that is whole, one that a killed process left behind, one that grows."""

import json

import pytest

from fedssl.core.errors import FedsslError
from fedssl.core.lines import Tail, read_lines, whole_tables


@pytest.mark.parametrize(("bad", "why"), [('{"round": 2', "Expecting"), ("[2]", "not a JSON object")])
def test_a_line_that_is_no_record_is_named_unless_the_file_may_be_torn(tmp_path, bad, why):
    path = tmp_path / "rounds.jsonl"
    path.write_text(f'{{"round": 1}}\n{bad}\n')
    with pytest.raises(FedsslError, match=rf"rounds\.jsonl, line 2: damaged \(.*{why}"):
        read_lines(path)
    assert read_lines(path, torn=True) == [{"round": 1}]


@pytest.mark.parametrize("bad", [b"\xff\xfe", b'{"round": "\xe4"}', b"\x00" * 12])
def test_bytes_that_are_no_text_and_bytes_beyond_the_size(tmp_path, bad):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n' + bad + b"\n")
    with pytest.raises(FedsslError, match=r"rounds\.jsonl, line 3: damaged"):
        read_lines(path)
    assert read_lines(path, torn=True) == [{"round": 1}, {"round": 2}]
    assert read_lines(path, size=13) == [{"round": 1}]


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FedsslError, match=r"rounds\.jsonl: cannot be read"):
        read_lines(tmp_path / "rounds.jsonl")


def test_a_tail_gives_each_whole_line_once_and_all_anew_when_the_file_is_another(tmp_path):
    path = tmp_path / "x.log"
    tail = Tail(path)
    assert (tail.new(), tail.anew) == ([], True)
    path.write_bytes(b"one\ntw")
    assert (tail.new(), tail.anew) == ([b"one"], True)
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert (tail.new(), tail.anew) == ([b"two", b"three"], False)
    assert (tail.new(), tail.anew) == ([], False)
    path.write_bytes(b"cut\n")
    assert (tail.new(), tail.anew) == ([b"cut"], True)
    path.with_name("new").write_bytes(b"cut\nreplaced\n")
    path.with_name("new").replace(path)
    assert (tail.new(), tail.anew) == ([b"cut", b"replaced"], True)
    path.unlink()
    assert (tail.new(), tail.anew) == ([], True)


def test_a_tail_from_the_end_leaves_out_what_was_there(tmp_path):
    path, late = tmp_path / "x.jsonl", tmp_path / "late.jsonl"
    path.write_text('{"old": 1}\n')
    tail, later = Tail(path, from_end=True), Tail(late, from_end=True)
    for file in (path, late):
        with file.open("a") as log:
            log.write(json.dumps({"new": 1}) + "\nhalf of a li\n[]\n" + json.dumps({"new": 2}) + "\n")
    assert [whole_tables(one.new()) for one in (tail, later)] == [[{"new": 1}, {"new": 2}]] * 2
