"""Own images: how fast they are decoded, and how much memory it takes to train on more of them than fit into it.

    python -m benchmarks.own_images decoding [--images 400] [--size 224]
    python -m benchmarks.own_images memory [--images 100000] [--size 224] [--limit 2.0] [--folder /tmp]

`decoding`: images a second into the cache (decoded, checked, hashed, resized, written), by one thread and by all cores,
against the usual loop (PIL: open, convert, resize; nothing checked, hashed or written). They take turns on the same
files, and the median of the repeats counts.

`memory`: makes that many JPEG files, then runs `fedssl run folder` twice in a process of its own: one round over every
image with a cold cache, then over one in fifty with a warm one. The process may allocate no more than --limit GB
(RLIMIT_DATA: above, an allocation fails; the run sees the limit and starts no worker processes that would not fit).
What it and all its children really held is read from /proc several times a second, pages that several of them have
shared out among them: `own` is memory that only they can free (Pss_Anon), `mapped` are pages of files, which the system
takes back (Pss_File).
Everything is made in a temporary folder and removed at the end; needs about 160 KB an image at 224 pixels.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from fedssl.core.progress import silent
from fedssl.data.own import cache as image_cache
from fedssl.data.own.cache import clean, decoded
from fedssl.data.own.decoding import Decoding
from fedssl.data.own.folder import find_in_folder

KINDS = {"photo.jpg": (1600, 1200), "small.jpg": (256, 256), "medium.png": (512, 512)}
MB = 1 << 20
RUN = """
import sys, time
from fedssl.experiment import load
started = time.perf_counter()
settings = {
    "data.path": sys.argv[1], "data.image_size": int(sys.argv[2]), "partition.num_clients": 5, "rounds": 1,
    "network.width": 4, "network.stem_stride": 2, "network.head_hidden": 64, "network.head_out": 32,
    "local_training.batch_size": 64, "evaluation.every": 0, "threads": int(sys.argv[4]),
    "partition.data_amount": float(sys.argv[5]),
}
from fedssl.experiment.progress.views import QuietView
class View(QuietView):
    def progress(self, text, done, total, client=None, images=0):
        if client is None and done == total:
            print(f"  {text}, {done:,}: done after {time.perf_counter() - started:.0f} s", flush=True)
    def start(self, title, rounds, steps, done):
        print(f"  training begins after {time.perf_counter() - started:.1f} s", flush=True)
report = load("folder", settings).run(sys.argv[3], View())
print(f"  round and summary done after {time.perf_counter() - started:.0f} s, loss {report.summary['final_loss']:.3f}")
"""


def write_picture(path: Path, width: int, height: int, seed: int) -> None:
    """Soft patches of colour with a little grain: compresses about as a photograph does."""
    stream = np.random.default_rng(seed)
    patches = Image.fromarray(stream.integers(0, 256, (max(2, height // 32), max(2, width // 32), 3), dtype=np.uint8))
    image = patches.resize((width, height), Image.Resampling.BILINEAR)
    if path.suffix == ".png":
        grain = stream.integers(0, 8, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(np.asarray(image) // 2 + grain)
    image.save(path, quality=85)


def write_pictures(folder: Path, name: str, count: int, size: tuple[int, int]) -> None:
    stem, _, ending = name.partition(".")

    def one(number: int) -> None:
        place = folder / f"{number // 1000:04}"
        place.mkdir(parents=True, exist_ok=True)
        write_picture(place / f"{stem}-{number:07}.{ending}", *size, number)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, range(count)))


def into_cache(folder: Path, size: int, threads: int) -> None:
    content, before = find_in_folder(folder), image_cache.MOST_THREADS
    image_cache.MOST_THREADS = threads
    decoded(content.source, list(range(len(content.samples))), Decoding(size), silent, "", lambda *_: None)
    image_cache.MOST_THREADS = before
    clean()


def usual_loop(folder: Path, size: int) -> None:
    for path in sorted(folder.rglob("*.*")):
        np.asarray(Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def decoding(options: argparse.Namespace, folder: Path) -> None:
    cores = min(os.cpu_count() or 1, image_cache.MOST_THREADS)
    makers = {
        "fedssl, 1 thread": lambda path: into_cache(path, options.size, 1),
        f"fedssl, {cores} threads": lambda path: into_cache(path, options.size, cores),
        "PIL in a loop": lambda path: usual_loop(path, options.size),
    }
    print(f"images a second, brought to {options.size} x {options.size}; median of {options.repeats}")
    for name, (width, height) in KINDS.items():
        place = folder / name.replace(".", "-")
        write_pictures(place, name, options.images, (width, height))
        seconds: dict[str, list[float]] = {maker: [] for maker in makers}
        for _ in range(options.repeats):
            for maker, make in makers.items():
                started = time.perf_counter()
                make(place)
                seconds[maker].append(time.perf_counter() - started)
        rates = {maker: options.images / statistics.median(times) for maker, times in seconds.items()}
        text = "   ".join(f"{maker}: {rate:6,.0f}" for maker, rate in rates.items())
        print(f"{name.split('.')[1].upper():5} {width:4} x {height:4}   {text}")


def watch(process: "subprocess.Popen[bytes]", deadline: float) -> dict[str, int]:
    """The most that a process and its children ever held together, in kilobytes, by the names that /proc gives them."""
    peak = {"Pss_Anon": 0, "Pss_File": 0, "Pss": 0}
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            sys.exit("  took too long and was stopped")
        now = dict.fromkeys(peak, 0)
        for one in family(process.pid):
            for line in lines_of(Path(f"/proc/{one}/smaps_rollup")):
                name, _, value = line.partition(":")
                if name in now:
                    now[name] += int(value.split()[0])
        peak = {name: max(most, now[name]) for name, most in peak.items()}
        time.sleep(0.3)
    return peak


def family(parent: int) -> list[int]:
    """A process and all its children and theirs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        for line in lines_of(path):
            after_name = line.rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(path.parent.name))
    pids = [parent]
    for one in pids:
        pids += children.get(one, [])
    return pids


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # the process has ended
        return []


def memory(options: argparse.Namespace, folder: Path) -> None:
    pixels = options.images * 3 * options.size**2
    print(f"{options.images:,} images of {options.size} x {options.size}: {pixels / 1e9:.1f} GB of pixels")
    started = time.perf_counter()
    write_pictures(folder / "photos", "x.jpg", options.images, (256, 256))
    print(f"files made in {time.perf_counter() - started:.0f} s", flush=True)
    limit = int(options.limit * 1e9)
    for title, share in (("cold", 1.0), ("warm", 0.02)):
        print(f"{title} cache, at most {options.limit:g} GB may be allocated", flush=True)
        command = [sys.executable, "-c", RUN, str(folder / "photos"), str(options.size), str(folder / f"run-{title}")]
        process = subprocess.Popen(
            [*command, str(options.threads), str(share)],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )
        peak = watch(process, time.monotonic() + options.minutes * 60)
        if process.returncode:
            sys.exit(f"  failed with exit code {process.returncode}")
        own, mapped, both = (peak[name] / 1024 for name in ("Pss_Anon", "Pss_File", "Pss"))
        print(f"  peak: own {own:,.0f} MB, mapped {mapped:,.0f} MB, at the same time {both:,.0f} MB", flush=True)
    sizes = {path.name: path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()}
    print("cache: " + ", ".join(f"{name} {size / MB:,.1f} MB" for name, size in sizes.items() if size > MB))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["decoding", "memory"])
    parser.add_argument("--images", type=int, default=0, help="400 to decode, 100,000 for memory")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=2.0, help="GB that may be allocated")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--minutes", type=float, default=180, help="for each of the two runs")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    options.images = options.images or {"decoding": 400, "memory": 100_000}[options.what]
    folder = Path(tempfile.mkdtemp(prefix="own-images-", dir=options.folder))
    os.environ["FEDSSL_DATA"] = str(folder / "cache")
    try:
        {"decoding": decoding, "memory": memory}[options.what](options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
