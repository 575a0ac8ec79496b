"""Damage to any file of a run folder or of the image cache, and who notices; nothing may pass in silence.

A case damages one file of a copy and lets every reader have a look, then the run itself, then the readers again. What
they give is compared with what they give of the whole folder: other values without a word are "silent".
"""

import contextlib
import os
import random
import shutil
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from tests.faults.test_damage import Stops
from tests.helpers.faults import everything
from tests.helpers.pictures import encoded, noise, write_folder
from tests.helpers.small import TINY

# What may change without being noticed: nobody reads it, it only saves time, or it is news for a page that is watched.
UNREAD = (".lock", ".owner.json", "features", "images/known", "checked", "flower", "live.json")
SETTINGS = {
    "partition.num_clients": 4,
    "client_sampling.clients_per_round": 2,
    "rounds": 3,
    "profile": True,
    "evaluation.every": 2,
    "engine": "in-process",
}
WAYS = ("flipped", "flipped", "truncated", "lost a line", "gone")


class Disturbed(Stops):
    """A client fails once, so that there is a failure to record."""

    def round_finished(self, record):
        self.round = record["round"]
        super().round_finished(record)

    def progress(self, text, done, total, client=None, images=0):
        if client is not None and getattr(self, "round", 0) == 0 and not getattr(self, "failed", False):
            self.failed = True
            raise RuntimeError("disturbed")


@dataclass(frozen=True)
class Subject:
    """A run folder to be damaged, how to resume it, and what readers and the run itself give when it is whole."""

    name: str
    folder: Path
    run: object  # called with a folder and a view
    seen: dict
    ended: dict


@dataclass(frozen=True)
class Case:
    subject: str
    file: str
    way: str
    outcome: str  # "noticed", "harmless", "silent" or "traceback"
    detail: str = ""


def synthetic(folder, view=None):
    from fedssl.experiment.experiment import load

    return load("smoke", TINY | SETTINGS | {"data.train_images": 64, "partition.name": "iid"}).run(folder, view)


def own_images(folder, view=None):
    from fedssl.experiment.experiment import load

    photos = Path(os.environ["FEDSSL_DATA"]).parent / "photos"
    settings = {key: value for key, value in (TINY | SETTINGS).items() if not key.startswith("data.")}
    settings |= {"data.path": str(photos), "data.image_size": 16, "data.layout": "silos"}
    settings |= {"local_training.batch_size": 4, "evaluation.every": 0}
    return load("folder", {key: settings[key] for key in settings if key != "partition.num_clients"}).run(folder, view)


def subjects(scratch):
    """A finished and evaluated run, one stopped after round 2, one killed there, and one on a user's own images."""
    write_folder(scratch / "photos", clients=("a", "b", "c", "d"), each=6)
    (scratch / "photos" / "a" / "broken.jpg").write_bytes(encoded(noise(64), "JPEG")[:1000])
    synthetic(scratch / "finished", Disturbed())
    evaluated(scratch / "finished")
    for name in ("stopped", "killed"):
        with contextlib.suppress(KeyboardInterrupt):
            synthetic(scratch / name, Disturbed(after=2))
    for path in ("summary.json", "encoder.safetensors"):
        (scratch / "killed" / path).unlink()
    own_images(scratch / "own")
    how = {"finished": synthetic, "stopped": synthetic, "killed": synthetic, "own": own_images}
    return [subject(name, scratch / name, run) for name, run in how.items()]


def subject(name, folder, run):
    whole = shutil.copytree(folder, folder.with_name("whole") / name)
    seen = {reader.__name__: outcome(reader, whole) for reader in READERS}
    run(whole)
    return Subject(name, folder, run, seen, ended(whole))


def ended(folder):
    found = everything(folder)
    found["summary"].pop("profile")  # seconds
    return found


# --- the readers -----------------------------------------------------------------------------------------------------


def record(folder):
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.compare import results

    found = RunRecord.read(folder)
    return replace(found, path=None), found.profile, results([found])


def listed(folder):
    from fedssl.core.errors import FedsslError
    from fedssl.reports.listing import list_runs

    (line,) = [one for one in list_runs(folder.parent) if one.name == folder.name]
    if line.status.startswith(("broken", "running, or killed")):
        raise FedsslError(f"{line.status} (summary.json)")
    return replace(line, age="")


def reported(folder):
    """A page of every run is made, but its curves and bars, which are most of the work, only where they are new."""
    from fedssl.reports.run_page import write_report

    out = folder.with_name("report.html")
    with patch.multiple("fedssl.reports.run_figures", curves=drawn_once("curves"), bars=drawn_once("bars")):
        return write_report([folder], out, images=0), out.read_text()


@cache
def drawn_once(name):
    """The same numbers give the same drawing."""
    from fedssl.reports import plots

    draw, known = getattr(plots, name), {}

    def drawn(*values, **options):
        key = repr((values, options))
        if key not in known:
            known[key] = draw(*values, **options)
        return known[key]

    return drawn


def encoder(folder):
    import fedssl
    from fedssl.core.weights import Weights

    return Weights.of(fedssl.load_encoder(folder)).digest()


def opened(folder):
    from fedssl.core.weights import Weights
    from fedssl.experiment.finished_run import FinishedRun

    run = FinishedRun.open(folder)
    encoders = [
        Weights.of(one).digest() for one in (run.global_encoder(), *map(run.client_encoder, run.client_rounds()))
    ]
    clients = [part.tolist() for part in run.partition.clients]
    return encoders, clients, run.environment, run.summary, run.rounds, run.config


def evaluated(folder):
    from fedssl.encoders.evaluate import Request, evaluate

    return evaluate(folder, Request(protocols=("knn",), batchnorm="running"))


READERS = (record, listed, reported, encoder, opened)


def outcome(reader, folder):
    """What a reader gives, or the words with which it refuses; anything else it raises goes up."""
    from fedssl.core.errors import FedsslError

    try:
        return "gave", reader(folder)
    except FedsslError as error:
        return "refused", str(error).replace(str(folder), "")


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(path, way, stream):
    """Always another content than before, or none."""
    content = bytearray(path.read_bytes())
    if way == "gone" or not content:
        path.unlink()
    elif way == "flipped":
        content[stream.randrange(len(content))] ^= 1 << stream.randrange(8)
        path.write_bytes(content)
    elif way == "truncated":
        path.write_bytes(content[: stream.randrange(len(content))])
    else:
        lines = content.splitlines(keepends=True)
        del lines[stream.randrange(len(lines))]
        path.write_bytes(b"".join(lines))


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def look(one, file, way, stream, scratch):
    """One case: a copy of the run folder, one file of it damaged, and everybody has a look."""
    folder = shutil.copytree(one.folder, scratch / one.name)
    damage(folder / file, way, stream)
    try:
        return replace(_classified(one, folder, file), way=way)
    except Exception:  # whatever it is, it is what this looks for
        return Case(one.name, str(file), way, "traceback", traceback.format_exc())
    finally:
        shutil.rmtree(folder)


def _classified(one, folder, file):
    noticed, silent = [], []
    for reader in READERS:
        found, usual = outcome(reader, folder), one.seen[reader.__name__]
        if found != usual:
            refused_anyway = found[0] == usual[0] == "refused"  # e.g. the encoder of a run that has none yet
            (noticed if refused_anyway or _names(found, file) else silent).append((reader.__name__, found))
    view = Stops()
    ran = outcome(lambda folder: one.run(folder, view) and None, folder)
    said = "\n".join(view.lines)
    if ran[0] == "refused":
        (noticed if _names(ran, file) else silent).append(("run", ran))
    else:
        named = _names(("refused", said), file)
        noticed += [("run", said)] if named else []
        came_to = outcome(ended, folder)
        if came_to != ("gave", one.ended) and not named and not _names(came_to, file):
            silent.append(("run", said))
        again = [outcome(reader, folder) for reader in (record, opened)]
        silent += [("afterwards", one) for one in again if one[0] == "refused" and not _names(one, file)]
    kind = "silent" if silent else "noticed" if noticed else "harmless"
    if kind == "harmless" and not _unread(one, file):
        kind = "silent"
    return Case(one.name, str(file), "", kind, str((silent or noticed)[:1])[:600])


def _names(found, file):
    """Whether the words name the damaged file, or the folder of the state that it belongs to."""
    return found[0] == "refused" and (file.name in found[1] or (len(file.parts) > 1 and file.parent.name in found[1]))


def _unread(one, file):
    """Files that nobody needs: locks, caches, and states that no checkpoint which is used asks for."""
    return any(part in str(file) for part in UNREAD) or not _needed(one, file)


def _needed(one, file):
    if file.parts[0] not in ("clients", "checkpoints"):
        return True
    from fedssl.federation.checkpoint import CheckpointStore

    store = CheckpointStore(one.folder / "checkpoints")
    newest = store.load(store.rounds()[-1]).state
    if file.parts[0] == "checkpoints":
        return file.parts[1] == f"round-{newest.round_number:06d}" and one.name in ("stopped", "killed")
    client, number = int(file.parts[1][-5:]), int(file.parts[2][-6:])
    return newest.accepted_round.get(client) == number


def cache_case(own, way, stream, scratch):
    """One file of the image cache damaged: it is made again, and the run on it gives the same."""
    from fedssl.data.own.cache import cache_folder

    kept = shutil.copytree(cache_folder(), scratch / "kept-cache")
    file = stream.choice(files_of(cache_folder()))
    damage(cache_folder() / file, way, stream)
    try:
        view = Prepares()
        own.run(scratch / "again", view)
        equal = ended(scratch / "again") == own.ended
        said = any("again, the cache was damaged" in text for text in view.prepared)
        kind = "silent" if not equal else "noticed" if said else "harmless"
        return Case("image cache", str(file), way, kind)
    except Exception:
        return Case("image cache", str(file), way, "traceback", traceback.format_exc())
    finally:
        shutil.rmtree(scratch / "again", ignore_errors=True)
        shutil.rmtree(cache_folder())
        kept.rename(cache_folder())


class Prepares(Stops):
    def __init__(self):
        super().__init__()
        self.prepared = []

    def progress(self, text, done, total, client=None, images=0):
        super().progress(text, done, total, client, images)
        self.prepared += [text] if client is None else []


def fuzz(count, seed, scratch, say=lambda text: None):
    """`count` cases, a tenth of them in the image cache; every file of every folder before any comes twice."""
    stream, found = random.Random(seed), []
    all_of_them = subjects(scratch)
    places = [(one, file) for one in all_of_them for file in files_of(one.folder)]
    stream.shuffle(places)
    for number in range(count):
        way = stream.choice(WAYS)
        if number % 10 == 9:
            case = cache_case(all_of_them[-1], way, stream, scratch)
        else:
            one, file = places[number % len(places)]
            case = look(one, file, way, stream, scratch / "copy")
        found.append(case)
        if case.outcome in ("silent", "traceback"):
            say(f"case {number}: {case}")
        if number % 50 == 49:
            say(f"{number + 1} of {count}: {dict(Counter(case.outcome for case in found))}")
    return found
