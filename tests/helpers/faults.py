"""Runs in processes of their own that may be killed at any instant, and what must be equal afterwards."""

import functools
import io
import json
import multiprocessing
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.small import TINY

# Children are forked from a server that has imported everything and trained nothing: they start in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["fedssl.experiment.starting", "tests.helpers.faults"])
IDLE, SAVING = 0, 1
SETTINGS = TINY | {
    "data.train_images": 96,
    "partition.name": "iid",
    "partition.num_clients": 6,
    "client_sampling.clients_per_round": 3,
    "rounds": 4,
    "evaluation.every": 2,
}
PRESETS = {
    "BYOL + FedEMA": ("smoke", SETTINGS),
    "MoCo": ("smoke", SETTINGS | {"method.name": "mocov2", "update_rule.name": "replace", "method.queue_size": 24}),
    "FedU": ("smoke+fedu", SETTINGS),
    "DINO": ("smoke+feddino", SETTINGS | {"method.prototypes": 12, "method.local_views": 1}),
    "MAE": (  # its decoder stays at the clients
        "smoke+fedmae",
        SETTINGS
        | {"network.width": 8, "network.depth": 1, "method.decoder": "stays"}
        | {"method.decoder_width": 8, "method.decoder_depth": 1},
    ),
    "FedSC": ("smoke+fedsc", SETTINGS),  # a payload that the server pools, and client memory
    "Secure FedEMA": ("smoke", SETTINGS | {"aggregation.secure": True, "update_rule.lambda_at": "client"}),
}
TIMES = ("seconds", "core_seconds", "images_per_second", "aggregation_seconds", "files")  # of files: they hold times


def experiment(name, **changes):
    from fedssl.experiment.experiment import load

    preset, settings = PRESETS[name]
    return load(preset, settings | changes)


def everything(folder):
    """All that must be equal: global weights, every client's state, the records and the evaluation."""
    from fedssl.core.weights import Weights
    from fedssl.experiment.records.run_record import read_summary
    from fedssl.federation.checkpoint import CheckpointStore
    from fedssl.federation.client_store import ClientStore

    checkpoints, store = CheckpointStore(folder / "checkpoints"), ClientStore(folder / "clients")
    state = checkpoints.load(checkpoints.rounds()[-1]).state
    clients = {}
    for client, accepted in sorted(state.accepted_round.items()):
        one = store.load(client, accepted)
        parts = (one.weights.online, one.weights.predictor, one.weights.target)
        memory = {name: tensor.tolist() for name, tensor in one.memory.items()}
        clients[client] = [part.digest() for part in parts] + [one.scalars, one.last_round, memory]
    rounds = [without_times(json.loads(line)) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    metrics = (folder / "metrics.csv").read_text().splitlines()
    return {
        "global": state.global_weights.digest,
        "server": [state.round_number, state.accepted_round, state.notes],
        "payload": Weights(state.payload).digest(),
        "memory": Weights(state.memory).digest(),
        "clients": clients,
        "rounds": rounds,
        "metrics": [metrics[0], *(line.split(",")[0] for line in metrics[1:])],
        "summary": without_times(read_summary(folder)),
    }


def without_times(record):
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key not in TIMES}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def left_over(folder):
    """What a killed process left unfinished and nobody took away."""
    return [path for path in folder.rglob("*") if ".unfinished" in path.name or path.name.startswith(".tmp")]


# --- in the child ----------------------------------------------------------------------------------------------------


def child(name, folder, ready, phase, saves, changes):
    _mark_saves(phase, saves)
    run = experiment(name, **changes)
    ready.set()
    run.run(folder)


def _mark_saves(phase, saves):
    """Says in shared memory whether the process is inside a save right now, and how many it has done."""
    from fedssl.federation import checkpoint, client_store

    for module in (checkpoint, client_store):
        for function in ("seal", "remove_folder"):
            setattr(module, function, _marked(getattr(module, function), phase, saves))


def _marked(function, phase, saves):
    @functools.wraps(function)
    def marked(*values):
        phase.value = SAVING
        try:
            return function(*values)
        finally:
            phase.value = IDLE
            saves.value += function.__name__ == "seal"

    return marked


# --- the killer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kill:
    after: float
    in_save: bool
    point: tuple  # what was on disk: the newest checkpoint and every client's generations
    finished: bool


def start(name, folder, **changes):
    ready, phase, saves = CONTEXT.Event(), CONTEXT.Value("b", IDLE), CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=child, args=(name, folder, ready, phase, saves, changes))
    process.start()
    while not ready.wait(0.5):
        assert process.is_alive(), f"the child ended with {process.exitcode} before it began"
    return process, phase, saves


def finish(name, folder, **changes):
    """Here, which is another process than the one that was killed, and warm: half of what a new one takes."""
    experiment(name, **changes).run(folder)


def kill_once(name, folder, stream, how, longest, most_saves, **changes):
    """SIGKILL after a random time, a random moment after a random save, or inside a random save."""
    process, phase, saves = start(name, folder, **changes)
    begun = time.monotonic()
    if how == "time":
        time.sleep(stream.uniform(0, longest))
    else:
        chosen = stream.randrange(most_saves)
        while process.is_alive() and (saves.value < chosen or (how == "save" and phase.value != SAVING)):
            time.sleep(0.0001)
        time.sleep(stream.uniform(0, 0.002 if how == "save" else longest / most_saves))
    in_save = phase.value == SAVING
    process.kill()  # SIGKILL
    process.join()
    return Kill(time.monotonic() - begun, in_save, resume_point(folder), process.exitcode == 0)


def resume_point(folder):
    checkpoints = sorted(path.name for path in folder.glob("checkpoints/round-*") if path.suffix == "")
    clients = sorted(str(path.relative_to(folder)) for path in folder.glob("clients/*/round-*") if path.suffix == "")
    return (*checkpoints[-1:], *clients)


HOW = ("time", "after a save", "save", "after a save")


def kill_and_compare(name, kills, seed, scratch: Path, say=lambda text: None, **changes):
    """Undisturbed run once, then runs that are each killed once, resumed and compared."""
    process, _, saves = start(name, scratch / "undisturbed", **changes)
    begun = time.monotonic()
    process.join(300)
    assert process.exitcode == 0
    longest, most_saves = time.monotonic() - begun, saves.value
    expected, stream, found = everything(scratch / "undisturbed"), random.Random(f"{name} {seed}"), []
    number = 0
    while len(found) < kills:
        number += 1
        folder = scratch / f"killed-{number}"
        kill = kill_once(name, folder, stream, HOW[number % 4], longest, most_saves, **changes)
        if kill.finished:
            longest *= 0.9  # it was faster than the first one: that was no kill
            continue
        found.append(kill)
        finish(name, folder, **changes)
        assert everything(folder) == expected, f"kill {number} of {name}: {found[-1]}"
        assert left_over(folder) == []
        shutil.rmtree(folder)
        say(f"{name}: kill {len(found)}/{kills} after {found[-1].after:.2f} s: equal")
    return found


# --- crashes at one storage call -------------------------------------------------------------------------------------


CALLS = ("open", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")


def crashing_child(name, folder, saver, round_number, at, count, changes):
    """Resumes a run and ends before the `at`-th call that touches the disk in one save."""
    from fedssl.core import sealed
    from fedssl.federation.checkpoint import CheckpointStore
    from fedssl.federation.client_store import ClientStore
    from fedssl.federation.secure.client_side import SecureClient

    inside = [False]
    for store in (CheckpointStore, ClientStore):
        store.save = _flagged(store.save, inside, store.__name__ == saver, round_number)
    SecureClient.answer = _flagged(SecureClient.answer, inside, saver == "SecureClient", round_number)
    for call in CALLS:
        setattr(os, call, counted(getattr(os, call), inside, count, at))
    io.open = counted(io.open, inside, count, at)
    sealed.write_tensors = counted(sealed.write_tensors, inside, count, at, _half_a_file)
    experiment(name, **changes).run(folder)


def _flagged(save, inside, wanted, round_number):
    @functools.wraps(save)
    def flagged(store, *values):
        dated = [value for value in values if hasattr(value, "round_number")] or [values[0].state]
        inside[0] = wanted and dated[0].round_number == round_number
        try:
            return save(store, *values)
        finally:
            inside[0] = False

    return flagged


def counted(call, inside, count, at, half=None):
    @functools.wraps(call)
    def called(*values, **options):
        if inside[0]:
            count.value += 1
            if count.value == at:
                if half:
                    half(*values)
                os._exit(77)
        return call(*values, **options)

    return called


def _half_a_file(path, tensors):
    path.write_bytes(b"\x10" * 100)


def crash(name, folder, saver, round_number, at, **changes):
    """Runs until the `at`-th storage call; returns the exit code and how many calls were counted."""
    count = CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=crashing_child, args=(name, folder, saver, round_number, at, count, changes))
    process.start()
    process.join(300)
    return process.exitcode, count.value
