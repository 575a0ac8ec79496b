"""A whole deployment on loopback, every part a process of its own that a test may kill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from PIL import Image

from fedssl.data.standard.synthetic import synthetic_images
from fedssl.deployment.certificates import make_node_key, make_roster, make_server_certificate
from fedssl.experiment.experiment import load
from fedssl.federation.checkpoint import CheckpointStore
from fedssl.federation.client_store import ClientStore
from tests.helpers.ports import free_port

NAMES = ["hospital-a", "hospital-b"]
SETTINGS = {
    "data.image_size": 16,
    "network.width": 4,
    "network.head_hidden": 16,
    "network.head_out": 8,
    "network.stem_stride": 1,
    "local_training.batch_size": 8,
    "local_training.lr": 0.032,
    "threads": 1,
}
LIMIT = 400.0


def write_images(folder, seed, count=40):
    folder.mkdir(parents=True)
    for number, pixels in enumerate(synthetic_images(count, 10, 16, seed, "train").pixels.permute(0, 2, 3, 1).numpy()):
        Image.fromarray(pixels).save(folder / f"image-{number:03d}.png")


@dataclass
class Federation:
    """Folders of three machines under one, and the processes that run on them."""

    folder: Path
    rounds: int
    names: list = field(default_factory=lambda: NAMES)
    classes: tuple = ()  # of the images, one folder each; none: images without labels
    port: int = field(default_factory=free_port)
    processes: list = field(default_factory=list)

    def __enter__(self):
        self.make()
        return self

    def __exit__(self, *details):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()

    def make(self):
        make_server_certificate(self.folder / "server/certificates", ["127.0.0.1"])
        keys = self.folder / "server/keys"
        keys.mkdir()
        for number, name in enumerate(self.names):
            place = self.folder / "sites" / name
            if self.classes:
                for label, one in enumerate(self.classes):
                    write_images(place / one, 10 * number + label, 20)
            else:
                write_images(place, number)
            _, public = make_node_key(self.folder / name / "keys", name)
            (keys / public.name).write_bytes(public.read_bytes())
        for name in self.names:
            make_roster(self.folder / name / "keys/roster", sorted(keys.glob("*.pub")))

    def fedssl(self, machine, *arguments, **environment):
        place = self.folder / machine
        place.mkdir(parents=True, exist_ok=True)
        with (place / "output.txt").open("ab") as output:
            command = [sys.executable, "-m", "fedssl", *map(str, arguments)]
            given = {"cwd": place, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            process = subprocess.Popen(command, env=os.environ | environment, **given)
        self.processes.append(process)
        return process

    def server(self, *options, **changes):
        settings = SETTINGS | {"rounds": self.rounds, "flower.patience": 300} | changes
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        place = ["--host", "127.0.0.1", "--port", self.port, "--out", "run"]
        return self.fedssl("server", "server", "sites", "--clients", ",".join(self.names), *place, *words, *options)

    def client(self, name, *options, machine=None, environment=None, **given):
        usual = {
            "name": name,
            "server": f"127.0.0.1:{self.port}",
            "data": self.folder / "sites" / name,
            "state": "state",
            "ca": self.folder / "server/certificates/ca.pem",
        }
        words = [word for key, value in (usual | given).items() for word in (f"--{key}", value)]
        return self.fedssl(machine or name, "client", *words, *options, **(environment or {}))

    def output(self, machine):
        return (self.folder / machine / "output.txt").read_text()

    @property
    def run(self):
        return self.folder / "server" / "run"

    def done(self):
        """The last round that is recorded."""
        path = self.run / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1])["round"] if lines else -1

    def at_work(self, name):
        """Whether a client has a task that it has not answered; after its node was killed, always."""
        path = self.folder / name / "state" / "node.log"
        log = path.read_text(errors="replace") if path.exists() else ""
        return log.count("Receiving: train") > log.count("Sending: train")

    def wait(self, what, condition, limit=LIMIT):
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen in {limit:g} s:\n{self.story()}"
            time.sleep(0.2)

    def story(self):
        paths = [
            *self.folder.glob("*/output.txt"),
            *self.folder.glob("*/state/node.log"),
            self.run / "flower/superlink.log",
        ]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths if path.exists())

    def everything(self):
        """All that must be equal: global weights, notes, and every client's state, read from its own disk."""
        checkpoints = CheckpointStore(self.run / "checkpoints")
        state = checkpoints.load(checkpoints.rounds()[-1]).state
        stores = {}
        for number, name in enumerate(self.names):
            (folder,) = (self.folder / name / "state/runs").iterdir()
            stores[number] = ClientStore(folder)
        return compared(state, stores.__getitem__)

    def in_one_process(self, **changes):
        """The same on one machine: the sites' folders are silos."""
        settings = (
            SETTINGS
            | changes
            | {
                "rounds": self.rounds,
                "data.path": str(self.folder / "sites"),
                "data.layout": "silos",
                "data.labels": False,
                "engine": "in-process",
            }
        )
        load("folder", settings).run(self.folder / "alone")
        checkpoints = CheckpointStore(self.folder / "alone/checkpoints")
        store = ClientStore(self.folder / "alone/clients")
        return compared(checkpoints.load(checkpoints.rounds()[-1]).state, lambda _: store)


def compared(state, store_of):
    clients = {}
    for client, accepted in sorted(state.accepted_round.items()):
        one = store_of(client).load(client, accepted)
        parts = (one.weights.online, one.weights.predictor, one.weights.target)
        clients[client] = [*(part.digest() for part in parts), one.scalars, one.last_round]
    return {
        "global": state.global_weights.digest,
        "server": [state.round_number, state.accepted_round, state.notes],
        "clients": clients,
    }


def child_of(process, mark):
    """The process that another one started whose command line holds `mark`."""
    about = [one.info for one in psutil.process_iter(["pid", "ppid", "cmdline"])]
    children = [one for one in about if one["ppid"] == process.pid]
    return next((child["pid"] for child in children if mark in " ".join(child["cmdline"] or ())), None)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def power_cut(client):
    """All of a client at once; its node first, which so has no time to say goodbye to the server."""
    kill(child_of(client, "fedssl.deployment.supernode"))
    client.kill()
    client.wait(30)
