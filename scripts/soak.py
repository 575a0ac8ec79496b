"""Long and rough: kills, a full disk, damaged files, ten thousand rounds, ten thousand lies: `make soak` runs it.

Prints what it counts and fails when a promise is broken, or when it was too gentle to mean anything.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.federation.engines.test_hostile_replies import lie_to_a_server
from tests.helpers.faults import CONTEXT, PRESETS, everything, experiment, kill_and_compare
from tests.helpers.fuzz import fuzz
from tests.helpers.small import TINY

LEAST_IN_SAVE, LEAST_POINTS = 5, 25
SMALL_DISK = 3_000_000  # bytes: enough for some rounds of the tiny run, not for all
QUICK = {"evaluation.every": 0, "data.test_images": 10, "rounds": 12, "client_sampling.clients_per_round": 6}


def kills(count, scratch):
    results = {}
    for name in PRESETS:
        # Twelve rounds: with fewer there are not enough places to be killed in.
        met = kill_and_compare(name, count, seed=1, scratch=scratch / name.replace(" ", ""), say=say, rounds=12)
        in_save, points = sum(kill.in_save for kill in met), len({kill.point for kill in met})
        results[name] = {"kills": len(met), "equal": len(met), "inside a save": in_save, "resume points": points}
        if count >= 50:
            assert in_save >= LEAST_IN_SAVE, f"{name}: only {in_save} kills met a save"
            assert points >= LEAST_POINTS, f"{name}: only {points} distinct resume points"
    return results


def disk_full(scratch):
    """A small disk of its own, in a mount namespace: full in the middle of a run, then with room again."""
    command = [sys.executable, "-m", "scripts.soak", "--inside-small-disk", str(scratch / "disk")]
    done = subprocess.run(["unshare", "-rm", *command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def inside_small_disk(folder):
    folder.mkdir(parents=True)
    whole = folder.parent / "whole"
    experiment("BYOL + FedEMA", **QUICK).run(whole)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)], check=True)
    from fedssl.core.errors import StorageError

    stops, reserve = [], folder / "reserve"
    for room in (0.6, 0.4, 0.2, 0.0):
        reserve.write_bytes(b"x" * int(room * SMALL_DISK))  # somebody else's file, smaller each time
        try:
            experiment("BYOL + FedEMA", **QUICK).run(folder / "run")
        except StorageError as error:
            stops.append(str(error))
    assert stops, "the disk never filled up"
    assert all("No space left on device" in text and " free)" in text for text in stops), stops
    subprocess.run(["mount", "-o", f"remount,size={20 * SMALL_DISK}", str(folder)], check=True)
    experiment("BYOL + FedEMA", **QUICK).run(folder / "run")
    assert everything(folder / "run") == everything(whole)
    print(json.dumps({"stops by a full disk": len(stops), "equal after room was made": True}))


def damages(count, scratch):
    """One file of a run folder or of the image cache damaged at a time, and who notices."""
    scratch.mkdir()
    os.environ["FEDSSL_DATA"] = str(scratch / "fedssl-data")
    results = Counter(case.outcome for case in fuzz(count, 1, scratch, say))
    assert results["silent"] == results["traceback"] == 0, results
    return dict(results)


def many_rounds(rounds, scratch):
    """Memory, open files, threads and disk of a long run, at a tenth of it and at its end."""
    said = CONTEXT.Queue()
    process = CONTEXT.Process(target=long_child, args=(scratch / "long", rounds, said))
    process.start()
    early, late = said.get(timeout=3600), said.get(timeout=3600)
    process.join()
    assert late["memory MiB"] < 1.05 * early["memory MiB"] + 2, (early, late)
    for name in ("open files", "threads", "files on disk"):
        assert late[name] <= early[name] + 2, (name, early, late)
    assert late["states MB"] <= 1.01 * early["states MB"], (early, late)
    return {"rounds": rounds, "at a tenth": early, "at the end": late}


def long_child(folder, rounds, said):
    from fedssl.experiment.experiment import load
    from fedssl.experiment.progress.views import QuietView

    class Looks(QuietView):
        def round_finished(self, record):
            if record["round"] in (rounds // 10, rounds):
                said.put(look(folder))

    small = {"data.train_images": 8, "data.test_images": 10, "data.image_size": 8, "partition.name": "iid"}
    small |= {"partition.num_clients": 2, "local_training.batch_size": 4, "evaluation.every": 0, "rounds": rounds}
    load("smoke", TINY | small).run(folder, Looks())


def look(folder):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    states = [path for part in ("clients", "checkpoints") for path in (folder / part).rglob("*") if path.is_file()]
    return {
        "memory MiB": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "open files": len([*Path("/proc/self/fd").iterdir()]),
        "threads": int(status["Threads"]),
        "files on disk": len(states),
        "states MB": round(sum(path.stat().st_size for path in states) / 1e6, 3),
    }


def lies(count, scratch):
    """Made-up replies of registered clients through the whole of the server's path."""
    return lie_to_a_server(scratch / "lies", count, seed=2)


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills for each of three algorithms")
    parser.add_argument("--damages", type=int, default=500, help="damaged files")
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds of the long run")
    parser.add_argument("--lies", type=int, default=10_000, help="made-up replies to a server")
    parser.add_argument("--inside-small-disk", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside_small_disk:
        return inside_small_disk(options.inside_small_disk)
    scratch, begun = Path(tempfile.mkdtemp(prefix="fedssl-soak-")), time.monotonic()
    try:
        counts = {"SIGKILL": kills(options.kills, scratch)}
        say("a disk that fills up")
        counts["disk"] = disk_full(scratch)
        say("damaged files")
        counts["damaged files"] = damages(options.damages, scratch / "damages")
        say(f"{options.rounds} rounds")
        counts["long run"] = many_rounds(options.rounds, scratch)
        say(f"{options.lies} made-up replies")
        counts["made-up replies"] = lies(options.lies, scratch)
        counts["minutes"] = round((time.monotonic() - begun) / 60, 1)
        print(json.dumps(counts, indent=2))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return None


if __name__ == "__main__":
    main()
