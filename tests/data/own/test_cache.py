import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.core.progress import silent
from fedssl.data.dataset import Images, fingerprint
from fedssl.data.own import cache as image_cache
from fedssl.data.own.cache import cache_folder, clean, decoded
from fedssl.data.own.decoding import Decoding
from fedssl.data.own.folder import find_in_folder
from tests.helpers.pictures import noise, write, write_folder

SAME = Decoding(24)


def ignore(number, reason):
    pass


def look(root, decoding=SAME, progress=silent, refuse=ignore):
    found = find_in_folder(root)
    return decoded(found.source, list(range(len(found.samples))), decoding, progress, "decoding", refuse)


@pytest.fixture
def folder(tmp_path):
    pixels = write_folder(tmp_path / "photos", each=10)
    return tmp_path / "photos", torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.fixture
def decodings(monkeypatch):
    """The numbers of the images that are decoded, as they are."""
    seen, real = [], image_cache._decode
    monkeypatch.setattr(
        image_cache, "_decode", lambda read, number, how: seen.append(number) or real(read, number, how)
    )
    return seen


def sets():
    return sorted(path for path in cache_folder().iterdir() if (path / "index.json").exists())


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_pixels_are_those_of_the_files_in_order(folder):
    root, pixels = folder
    found = look(root)
    assert torch.equal(found.images().pixels, pixels)
    assert found.fingerprint == fingerprint(Images(pixels))
    assert found.num_bytes == pixels.numel() == found.pixels_path.stat().st_size
    assert [(one.width, one.kind) for one in found.outcomes] == [(24, "PNG RGB")] * 10


def test_order_does_not_depend_on_the_number_of_threads(tmp_path, monkeypatch):
    write_folder(tmp_path / "photos", each=40)
    prints = set()
    for threads in (1, 2, 7):
        monkeypatch.setattr(image_cache.os, "cpu_count", lambda threads=threads: threads)
        prints.add(look(tmp_path / "photos").fingerprint)
        clean()
    assert len(prints) == 1


def test_refused_files_leave_no_gap_and_are_told_at_once_and_again(folder):
    root, pixels = folder
    (root / "003.png").write_bytes(b"rubbish")
    (root / "007.png").write_bytes(b"")
    for _ in range(2):  # decoded, then from the cache
        told = []
        found = look(root, refuse=lambda number, reason, told=told: told.append((number, reason)))
        assert [number for number, _ in told] == [3, 7]
        assert told[1][1] == "empty file"
        assert torch.equal(found.images().pixels, pixels[[0, 1, 2, 4, 5, 6, 8, 9]])
        assert [bool(one.refused) for one in found.outcomes].count(True) == 2


def test_everything_refused_is_an_empty_set(tmp_path):
    (tmp_path / "x.png").write_bytes(b"rubbish")
    assert look(tmp_path).images().pixels.shape == (0, 3, 24, 24)


def test_it_cannot_be_written_through(folder):
    found = look(folder[0])
    before = found.pixels_path.read_bytes()
    probe = "import sys, torch\nfrom pathlib import Path\nfrom fedssl.data.own.cache import *\n"
    probe += f"DecodedImages(Path({str(found.folder)!r}), {found.shape}, '', []).images().pixels.zero_()\n"
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode
    assert ended != 0
    assert found.pixels_path.read_bytes() == before


# --- made once --------------------------------------------------------------------------------------------------------


def test_nothing_is_decoded_twice_nor_read(folder, decodings, monkeypatch):
    first = look(folder[0])
    assert sorted(decodings) == list(range(10))
    monkeypatch.setattr(image_cache, "fingerprint", None)  # not even the pixels are read again
    again = look(folder[0])
    assert sorted(decodings) == list(range(10))
    assert (again.folder, again.fingerprint) == (first.folder, first.fingerprint)


def test_other_settings_or_other_content_are_another_set(folder, decodings):
    root, _ = folder
    look(root)
    for decoding in (Decoding(12), Decoding(24, channels=1), Decoding(24, fit="stretch"), Decoding(24, white=99)):
        look(root, decoding)
    assert len(sets()) == 5
    path = root / "004.png"
    about = path.stat()
    write(path, noise(24, seed=99))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    changed = look(root)
    assert np.array_equal(changed.images().pixels[4].numpy(), noise(24, seed=99).transpose(2, 0, 1))
    assert len(sets()) == 6
    (root / "005.png").unlink()
    assert len(look(root).images().pixels) == 9


def test_equal_content_elsewhere_shares_the_same_set(folder, tmp_path):
    first = look(folder[0])
    shutil.copytree(folder[0], tmp_path / "copy")
    assert look(tmp_path / "copy").folder == first.folder
    assert len(sets()) == 1


def test_two_processes_at_once(folder, tmp_path):
    probe = (
        "import sys; from pathlib import Path;"
        "import tests.data.own.test_cache as t; print(t.look(Path(sys.argv[1])).fingerprint)"
    )
    command = [sys.executable, "-c", probe, str(folder[0])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    prints = {process.communicate(timeout=600)[0] for process in running}
    assert prints == {look(folder[0]).fingerprint + "\n"}
    assert [path.name for path in cache_folder().glob("unfinished-*")] == []


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unsigned(path):
    """An index as versions before checksums wrote it."""
    content = json.loads(path.read_text())
    del content["sha256"]
    return json.dumps(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: flip(found.pixels_path),
        lambda found: found.pixels_path.write_bytes(found.pixels_path.read_bytes()[:-1]),
        lambda found: found.pixels_path.unlink(),
        lambda found: (found.folder / "index.json").write_text("{"),
        lambda found: (found.folder / "index.json").write_text("[]"),
        lambda found: (found.folder / "index.json").write_bytes(b"\xff\xfe{}"),
        lambda found: flip(found.folder / "index.json"),
        lambda found: (found.folder / "index.json").write_text(unsigned(found.folder / "index.json")),
        lambda found: (found.folder / "index.json").unlink(),
        lambda found: shutil.rmtree(found.folder),
        lambda found: next((cache_folder() / "known").iterdir()).write_text(""),
        lambda found: next((cache_folder() / "known").iterdir()).write_text("../../photos"),
        lambda found: next((cache_folder() / "known").iterdir()).write_bytes(b"\xff\xfe"),
    ],
    ids=[
        *("flipped", "cut off", "no pixels", "no json", "other json", "no UTF-8", "flipped index", "older version"),
        *("no index", "gone", "no key", "bad key", "key no UTF-8"),
    ],
)
def test_damage_is_noticed_said_and_mended(folder, damage):
    root, pixels = folder
    damage(look(root))
    texts = set()
    found = look(root, progress=lambda text, done, total: texts.add(text))
    assert torch.equal(found.images().pixels, pixels)
    assert texts == {"decoding again, the cache was damaged or of another version", "reading them back"}
    assert len(sets()) == 1
    assert root.is_dir()
    assert look(root, progress=None).fingerprint == found.fingerprint


def test_a_flipped_bit_behind_the_old_time_is_noticed(folder):
    root, pixels = folder
    path = look(root).pixels_path
    about = path.stat()
    flip(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert torch.equal(look(root).images().pixels, pixels)


def test_a_sound_set_with_another_time_is_checked_once(folder, decodings, monkeypatch):
    found = look(folder[0])
    os.utime(found.pixels_path)
    look(folder[0])
    assert len(decodings) == 10
    monkeypatch.setattr(image_cache, "fingerprint", None)
    look(folder[0])


def test_a_file_that_could_not_be_read_is_tried_again(folder, monkeypatch):
    root, pixels = folder
    real = image_cache.decode_file

    def failing(file, decoding):
        if os.path.samestat(os.fstat(file.fileno()), (root / "004.png").stat()):
            raise OSError(5, "Input/output error")
        return real(file, decoding)

    monkeypatch.setattr(image_cache, "decode_file", failing)
    told = []
    assert len(look(root, refuse=lambda *given: told.append(given)).images().pixels) == 9
    assert told == [(4, "cannot be read: Input/output error")]
    monkeypatch.setattr(image_cache, "decode_file", real)
    assert torch.equal(look(root).images().pixels, pixels)


def test_a_shared_cache_that_cannot_be_written_to_is_read(folder, monkeypatch):
    found = look(folder[0])
    os.utime(found.pixels_path)

    def locked(path, text):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(image_cache, "write_atomically", locked)
    assert look(folder[0]).fingerprint == found.fingerprint


# --- interruptions and space ------------------------------------------------------------------------------------------


def test_a_kill_leaves_nothing_half_and_its_rest_goes_away(tmp_path, monkeypatch):
    write_folder(tmp_path / "photos", each=30)
    probe = (
        "import sys, time; from pathlib import Path;"
        "import tests.data.own.test_cache as t;"
        "t.look(Path(sys.argv[1]), progress=lambda *x: (print(x[1], flush=True), time.sleep(0.05)))"
    )
    command = [sys.executable, "-c", probe, str(tmp_path / "photos")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while (line := process.stdout.readline()) != "10\n":
            assert line, "it ended before it had decoded ten"
        process.send_signal(signal.SIGKILL)
    assert sets() == []
    (left,) = cache_folder().glob("unfinished-*")
    assert len(look(tmp_path / "photos").images().pixels) == 30
    assert left.exists(), "it may belong to a run that is at work"
    clean_cache = next(iter(sets()))
    shutil.rmtree(clean_cache)
    later = time.time() + 2 * image_cache.ABANDONED
    monkeypatch.setattr(image_cache.time, "time", lambda: later)
    look(tmp_path / "photos")
    assert not left.exists()


def test_an_interruption_leaves_nothing(folder):
    def stop(text, done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(folder[0], progress=stop)
    assert list(cache_folder().iterdir()) == []


def test_too_little_space_is_said_before_anything_is_decoded(folder, decodings, monkeypatch):
    usage = shutil.disk_usage(folder[0])._replace(free=1000)
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FedsslError, match=r"need 17,280 bytes and 1,000 are free.*fedssl data clean"):
        look(folder[0])
    assert decodings == []


def test_a_disk_that_fills_up_is_named(folder, monkeypatch):
    def full(work, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_cache, "_decode_all", full)
    with pytest.raises(FedsslError, match=r"cannot be written \(No space left on device; [\d,]+ bytes free\)"):
        look(folder[0])
    assert list(cache_folder().iterdir()) == []


def test_clean_says_what_it_removes_and_a_reader_goes_on(folder):
    assert clean() == (0, 0)
    found = look(folder[0])
    pixels = found.images().pixels
    count, size = clean(remove=False)
    assert count == 1
    assert size > found.num_bytes
    assert clean() == (1, size)
    assert not cache_folder().exists()
    assert torch.equal(pixels, folder[1])


def test_others_may_read_the_set(folder):
    found = look(folder[0])
    assert found.folder.stat().st_mode & 0o055 == 0o055
    assert json.loads((found.folder / "index.json").read_text())["settings"]["decoding"]["image_size"] == 24


# --- memory -----------------------------------------------------------------------------------------------------------


def test_where_everything_is_private_a_set_is_too(folder):
    before = os.umask(0o077)
    try:
        made = look(folder[0])
    finally:
        os.umask(before)
    paths = [made.folder.parent, made.folder, *made.folder.iterdir()]
    assert [oct(path.stat().st_mode & 0o077) for path in paths] == ["0o0"] * len(paths)


def mapped_kilobytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))


@pytest.mark.parametrize("use", ["gathered", "fingerprint"])
def test_pages_that_were_read_do_not_stay_in_the_process(tmp_path, use):
    """A map of 48 MB, read from end to end, batch by batch."""
    found = decoded(Repeated(), list(range(1000)), Decoding(128), silent, "", ignore)
    images = found.images()
    before, most = mapped_kilobytes(), 0
    if use == "gathered":
        chosen = images.chosen(range(1000))
        for start in range(0, 1000, 50):
            assert len(chosen.index_select(0, torch.arange(start, start + 50))) == 50
            most = max(most, mapped_kilobytes() - before)
    else:
        fingerprint(replace(images, known_fingerprint=""))
        most = mapped_kilobytes() - before
    assert most < 10_000
    assert int(images.pixels.sum()) > 0, "and they can be read again"
    assert mapped_kilobytes() - before > 40_000, "without release they stay: the measure measures"


class Repeated:
    """The same picture over and over."""

    def stamps(self, numbers):
        yield str(len(numbers))

    def opened(self):
        return nullcontext(lambda number: noise(128, number % 7))
