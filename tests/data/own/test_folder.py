import os
import threading
from pathlib import Path

import pytest

from fedssl.data.own import folder
from fedssl.data.own.decoding import FILE_FORMATS, RefusedError
from fedssl.data.own.folder import find_in_folder, open_image
from fedssl.data.own.found import by_number, printable, shortened
from tests.helpers.pictures import encoded, noise, tree, write, write_folder


def names(found):
    return [sample.name for sample in found.samples]


def reasons(found):
    return {one.file: one.reason for one in found.refused}


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_one_folder_is_searched_to_its_end_in_the_order_of_paths(tmp_path):
    for path in ("b.png", "a/z.PNG", "a/b/c.jpeg", "a/b.tiff", "Z.webp"):
        write(tmp_path / path, noise(), "PNG")
    found = find_in_folder(tmp_path)
    assert names(found) == ["Z.webp", "a/b.tiff", "a/b/c.jpeg", "a/z.PNG", "b.png"]
    assert {(sample.client, sample.label, sample.part) for sample in found.samples} == {(None, None, "train")}
    assert (found.clients, found.refused) == ((), [])


def test_subfolders_are_classes_when_every_image_is_in_one(tmp_path):
    write_folder(tmp_path, classes=("cat", "dog"), each=2)
    write(tmp_path / "cat" / "more" / "x.png", noise())
    assert [sample.label for sample in find_in_folder(tmp_path).samples] == ["cat"] * 3 + ["dog"] * 2
    assert {sample.label for sample in find_in_folder(tmp_path, labels=False).samples} == {None}


def test_an_image_beside_the_class_folders_means_no_classes_and_is_remarked(tmp_path):
    write_folder(tmp_path, classes=("cat", "dog"), each=2)
    write(tmp_path / "x.png", noise())
    found = find_in_folder(tmp_path)
    assert {sample.label for sample in found.samples} == {None}
    assert found.remarks == ("1 of 5 images, first x.png, are in no class folder: so no image has a class",)
    assert find_in_folder(tmp_path, labels=False).remarks == ()


def test_a_single_subfolder_is_no_class(tmp_path):
    write_folder(tmp_path, classes=("all",), each=2)
    assert {sample.label for sample in find_in_folder(tmp_path).samples} == {None}


def test_silos_are_clients_with_or_without_classes(tmp_path):
    write_folder(tmp_path / "plain", clients=("ward 10", "ward 9"), each=2)
    found = find_in_folder(tmp_path / "plain", silos=True)
    assert found.clients == ("ward 9", "ward 10")
    assert [(s.client, s.label) for s in found.samples] == [("ward 10", None)] * 2 + [("ward 9", None)] * 2
    write_folder(tmp_path / "classes", clients=("a", "b"), classes=("cat", "dog"), each=1)
    found = find_in_folder(tmp_path / "classes", silos=True)
    assert [(s.client, s.label) for s in found.samples] == [("a", "cat"), ("a", "dog"), ("b", "cat"), ("b", "dog")]


def test_an_empty_silo_and_one_out_of_reach_are_clients_all_the_same(tmp_path):
    write_folder(tmp_path / "silos", clients=("a",), each=2)
    (tmp_path / "silos" / "b").mkdir()
    (tmp_path / "far").mkdir()
    write(tmp_path / "far" / "x.png", noise())
    (tmp_path / "silos" / "c").symlink_to(tmp_path / "far")
    write(tmp_path / "silos" / "loose.png", noise())
    found = find_in_folder(tmp_path / "silos", silos=True)
    assert found.clients == ("a", "b", "c")
    assert names(found) == ["a/000.png", "a/001.png"]
    assert [(one.file, one.client) for one in found.refused] == [("c", "c"), ("loose.png", "")]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_links_lead_to_files_inside_or_nowhere(tmp_path):
    root = tmp_path / "root"
    write(root / "sub" / "x.png", noise())
    write(tmp_path / "outside.png", noise())
    (root / "inside.png").symlink_to("sub/x.png")
    (root / "outside.png").symlink_to("../outside.png")
    (root / "etc.png").symlink_to("/etc/passwd")
    (root / "nothing.png").symlink_to("not-there.png")
    (root / "loop.png").symlink_to("loop.png")
    (root / "again").symlink_to(".")
    found = find_in_folder(root)
    assert names(found) == ["inside.png", "sub/x.png"]
    assert reasons(found) == {
        "again": "a link to a folder",
        "etc.png": "a link that leaves the folder",
        "loop.png": reasons(found)["loop.png"],
        "nothing.png": "a link to nothing",
        "outside.png": "a link that leaves the folder",
    }
    with found.source.opened() as read, read(0) as file:
        assert file.read() == encoded(noise())


def test_a_root_that_is_a_link_is_followed(tmp_path):
    write_folder(tmp_path / "real", each=2)
    (tmp_path / "link").symlink_to("real")
    assert names(find_in_folder(tmp_path / "link")) == ["000.png", "001.png"]


def test_pipes_other_files_and_hidden_ones(tmp_path):
    write(tmp_path / "x.png", noise())
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.png").write_bytes(b"x")
    write(tmp_path / ".trash" / "y.png", noise())
    found = find_in_folder(tmp_path)
    assert names(found) == ["x.png"]
    assert reasons(found) == {"notes.txt": "its name has no ending of an image", "pipe.png": "no regular file"}


def test_a_file_that_becomes_a_pipe_or_a_link_after_it_was_found(tmp_path):
    """Opening must not wait for somebody to write into the pipe, nor follow the link."""
    path = write(tmp_path / "x.png", noise())
    found = find_in_folder(tmp_path)
    for replace in (os.mkfifo, lambda path: path.symlink_to("/etc/passwd")):
        path.unlink()
        replace(path)
        caught = []

        def read(caught=caught):
            with found.source.opened() as read:
                try:
                    read(0)
                except RefusedError as error:
                    caught.append(str(error))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(10)
        assert len(caught) == 1, "it waits, or it was read"


def test_unreadable_files_and_folders_are_named(tmp_path, monkeypatch):
    write(tmp_path / "sub" / "x.png", noise())
    found = find_in_folder(tmp_path)
    real_open, real_scan = os.open, os.scandir

    def locked(path, *options, **more):  # root may read everything, so that a mode of 0 would prove nothing
        if str(path).rstrip("/").endswith(("x.png", "sub")):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *options, **more) if options else real_scan(path)

    monkeypatch.setattr(folder.os, "open", locked)
    with found.source.opened() as read, pytest.raises(RefusedError, match="cannot be read: Permission denied"):
        read(0)
    monkeypatch.setattr(folder.os, "scandir", locked)
    assert reasons(find_in_folder(tmp_path)) == {"sub/": "folder cannot be read: Permission denied"}
    found = find_in_folder(tmp_path / "sub", silos=True)
    assert (found.clients, found.samples) == ((), [])
    assert reasons(found) == {"/": "folder cannot be read: Permission denied"}


def test_names_that_are_no_utf8_and_very_long_ones(tmp_path):
    strange = os.fsencode(tmp_path) + b"/\xff\xfe \xe9t\xe9.png"
    Path(os.fsdecode(strange)).write_bytes(encoded(noise()))
    write(tmp_path / ("n" * 251 + ".png"), noise())
    write(tmp_path / "new\nline\x1b[31m.png", noise())
    deep = tmp_path
    for _ in range(15):
        deep = deep / ("d" * 200)
    write(deep / "x.png", noise())
    found = find_in_folder(tmp_path)
    shown = names(found)
    assert len(shown) == 4
    assert r"\xff\xfe \xe9t\xe9.png" in shown
    assert r"new\nline\x1b[31m.png" in shown
    for number in range(4):
        with found.source.opened() as read, read(number) as file:
            assert file.read() == encoded(noise())


def test_folders_too_deep_for_a_path_are_refused_not_an_error(tmp_path):
    write(tmp_path / "x.png", noise())
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):  # by descriptors: a path of 5,000 characters cannot be given at once
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    found = find_in_folder(tmp_path)
    assert names(found) == ["x.png"]
    assert "File name too long" in found.refused[0].reason


def test_nothing_is_changed(tmp_path):
    write_folder(tmp_path, clients=("a", "b"), classes=("x", "y"), each=2)
    before = tree(tmp_path)
    found = find_in_folder(tmp_path, silos=True)
    with found.source.opened() as read:
        for number in range(len(found.samples)):
            read(number).close()
    assert tree(tmp_path) == before


# --- stamps and names -------------------------------------------------------------------------------------------------


def test_a_stamp_notices_a_change_that_hides_behind_the_old_time(tmp_path):
    path = write(tmp_path / "x.png", noise())
    source = find_in_folder(tmp_path).source
    before, about = list(source.stamps([0])), path.stat()
    assert list(source.stamps([0])) == before
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert list(source.stamps([0])) != before
    path.unlink()
    assert "FileNotFoundError" in next(source.stamps([0]))


def test_open_image_refuses_folders_and_impossible_names(tmp_path):
    with pytest.raises(RefusedError, match="no regular file"):
        open_image(str(tmp_path))
    with pytest.raises(RefusedError, match="null byte"):
        open_image("a\0b")


def test_names_for_people():
    assert sorted(["s10", "s9", "10", "9", "a"], key=by_number) == ["9", "10", "a", "s9", "s10"]
    assert printable("käse\t\udcff.png") == r"käse\t\xff.png"
    assert shortened("x" * 10, 20) == "x" * 10
    assert len(shortened("x" * 500)) == 121


def test_an_image_of_a_kind_that_is_not_read_says_so(tmp_path):
    for name in ("a.svg", "b.HEIC", "c.png", "d.gif"):
        (tmp_path / name).write_bytes(b"x")
    saved = f"is not read: save it as one of {', '.join(FILE_FORMATS)}"
    assert reasons(find_in_folder(tmp_path)) == {"a.svg": f"SVG {saved}", "b.HEIC": f"HEIC {saved}"}


@pytest.mark.parametrize(
    ("clients", "classes", "why"),
    [
        (("north", "south"), ("cat", "dog"), "each has a folder cat"),
        (("site1", "site2", "Hospital-A"), ("",), "by their names"),
        (("north", "south"), ("",), ""),
    ],
)
def test_folders_that_look_like_sites_are_remarked(tmp_path, clients, classes, why):
    write_folder(tmp_path, clients, classes, each=1)
    remarks = find_in_folder(tmp_path).remarks
    expected = f"look like sites, not classes ({why}): data.layout = silos"
    assert [expected in text for text in remarks] == ([True] if why else [])
    assert find_in_folder(tmp_path, silos=True).remarks == ()
