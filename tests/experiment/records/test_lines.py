"""The one reader of JSON lines: a file that is whole, and one that a killed process left behind."""

import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.records.run_record import read_lines


@pytest.mark.parametrize(("bad", "why"), [('{"round": 2', "Expecting"), ("[2]", "not a JSON object")])
def test_a_line_that_is_no_record_is_named_unless_the_file_may_be_torn(tmp_path, bad, why):
    path = tmp_path / "rounds.jsonl"
    path.write_text(f'{{"round": 1}}\n{bad}\n')
    with pytest.raises(FedsslError, match=rf"rounds\.jsonl, line 2: damaged \(.*{why}"):
        read_lines(path)
    assert read_lines(path, torn=True) == [{"round": 1}]


def test_bytes_that_are_no_text_and_bytes_beyond_the_size(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n\xff\xfe\n')
    with pytest.raises(FedsslError, match="cannot be read"):
        read_lines(path)
    assert read_lines(path, torn=True) == [{"round": 1}, {"round": 2}]
    assert read_lines(path, size=13) == [{"round": 1}]
