import errno

import pytest

from fedssl.core.errors import StorageError
from fedssl.core.files import (
    append_line,
    forget,
    free_bytes,
    remove_folder,
    replacing,
    storing,
    sweep,
    write_atomically,
)


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def stop_halfway():
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stop_halfway()
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_lines_are_appended(tmp_path):
    for line in ("a", "b"):
        append_line(tmp_path / "log", line)
    assert (tmp_path / "log").read_text() == "a\nb\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_says_what_is_needed_and_free(tmp_path, code):
    with pytest.raises(StorageError, match=r"a: cannot be written: .* \(1.5 MB needed, .* free\); .*make room"):  # noqa: SIM117
        with storing(tmp_path / "a", 1_500_000):
            raise OSError(code, "no")
    assert StorageError.exit_code == 5


def test_a_read_only_disk_says_so(tmp_path):
    with pytest.raises(StorageError, match="Read-only file system; what was saved before is intact"), storing(tmp_path):
        raise OSError(errno.EROFS, "Read-only file system")


def test_dev_full_is_a_full_disk(tmp_path):
    with pytest.raises(StorageError, match=r"/dev/full: cannot be written: No space left on device"):
        append_line(tmp_path.__class__("/dev/full"), "line")


def test_removing_and_sweeping(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_folder(tmp_path / "a")
    (tmp_path / "x" / "r.12.unfinished").mkdir(parents=True)
    (tmp_path / "x" / "f.12.unfinished").write_text("")
    (tmp_path / "x" / "kept").write_text("")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["x", "kept"]


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path):
    assert free_bytes(tmp_path / "a" / "b") == free_bytes(tmp_path) > 0


def test_a_file_that_the_system_may_forget_is_as_it_was_and_none_is_needed(tmp_path):
    (tmp_path / "a").write_bytes(b"kept")
    forget(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"kept"
    forget(tmp_path / "not there")
