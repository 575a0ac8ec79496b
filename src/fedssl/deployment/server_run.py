"""The server's side of a deployment: the same run as anywhere, whose clients and their images are elsewhere."""

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.files import write_atomically
from fedssl.core.progress import Progress
from fedssl.data.dataset import Pixels, where
from fedssl.data.partition import Partition
from fedssl.deployment.consent import settings_digest, spelled
from fedssl.deployment.supervision import MARK
from fedssl.experiment.backends import Running, secure_server
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.build.parts import Parts, assemble, build
from fedssl.experiment.config.layers import typed_config
from fedssl.experiment.config.resolve import check_round
from fedssl.experiment.config.schema import Config, Raw
from fedssl.experiment.engine_choice import EngineChoice
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.progress.views import PlainView, View
from fedssl.experiment.records.run_folder import FLOWER, RunFolder
from fedssl.experiment.records.run_record import read_json
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.flower.directory import ByKey, ByName, Directory, Grid
from fedssl.federation.engines.flower.engine import A_DAY, FlowerEngine
from fedssl.federation.rounds import Engine

if TYPE_CHECKING:
    from fedssl.federation.secure.server_side import SecureServer

SETTINGS, DEPLOYMENT, PROGRESS = "settings.toml", "deployment.json", "progress.log"

ERROR, APP_PID = "error.json", "app.pid"

PAUSE = 0.05  # seconds between two looks for replies; our SuperLink keeps each until there is news, or a second


@dataclass(frozen=True)
class AtSites:
    """Clients behind Flower's grid, known by their keys, or by their word where a deployment has none."""

    grid: Grid
    run: str  # the id under which clients keep their states of this run
    keys: dict[str, str]  # the public key of each client, as its file has it

    def build(self, config: Config, progress: Progress) -> Parts:
        names = config.flower.clients
        if not config.update_rule.factory.shares:
            raise FedsslError(f"update_rule.name: {config.update_rule.name!r} shares nothing: it needs no deployment")
        if where(config.data.factory) != "sites":
            return _named(build(config, progress), names)
        check_round(config, config.client_sampling.clients_per_round or len(names))
        dataset = build_dataset(config.data, progress)
        partition = Partition(tuple(np.empty(0, np.int64) for _ in names), 0, names=tuple(names))
        remarks = list(dataset.remarks)
        if dataset.labelled is None:
            remarks.append("no accuracy can be given without labelled images here (data.eval_train, data.eval_test)")
        return assemble(config, dataset, partition, _nothing, progress, remarks)

    def choose(self, config: Config, parts: Parts, folder: RunFolder, total_steps: int) -> EngineChoice:  # noqa: ARG002
        return EngineChoice(config.run.model_copy(update={"engine": "flower"}))

    def store(self, config: Config, parts: Parts, folder: RunFolder) -> ClientStore | None:
        """None: states lie at the clients."""

    def engine(self, run: Running) -> AbstractContextManager[Engine]:
        names, settings = run.config.flower.clients, run.config.as_raw()

        def about(client_id: int) -> Raw:
            return {"run": self.run, "name": names[client_id], "settings": settings}

        run.view.say(f"run {self.run}: SHA-256 of the settings, as `fedssl client approve` shows it at the sites:")
        run.view.say(f"  {spelled(settings_digest(settings))}")
        return FlowerEngine(
            grid=self.grid,
            directory=self._directory(names, run.view),
            folder=run.folder.path,
            about=about,
            waiting=run.view.waiting,
            presence=run.view.presence,
            clients=len(names),
            patience=run.config.flower.patience,
            time_limit=run.config.failures.client_timeout or A_DAY,
            pause=PAUSE,
            approval_patience=run.config.flower.approval_patience,
        )

    def secure(self, run: Running) -> "SecureServer | None":
        if run.parts.client.terms is None:
            return None
        from fedssl.federation.secure.keys import roster_from

        names = run.config.flower.clients
        return secure_server(run, names, roster_from([(name, self.keys[name]) for name in names]), self.run)

    def _directory(self, names: list[str], view: View) -> Directory:
        if not self.keys:
            return ByName(grid=self.grid, names=names, say=view.say)
        keys = {key_bytes(text.encode()): name for name, text in self.keys.items()}
        return ByKey(grid=self.grid, names=names, keys=keys, say=view.say)


def _named(parts: Parts, names: list[str]) -> Parts:
    """A shared set is dealt out by the settings; who gets which part is the order of the names."""
    count = len(parts.partition.clients)
    if count != len(names):
        raise FedsslError(f"flower.clients: {len(names)} names for {count} clients (partition.num_clients)")
    return parts


def _nothing(client_id: int) -> Pixels:  # noqa: ARG001
    return torch.empty(0)


def _refuse_other(folder: Path) -> None:
    """Whoever is on this machine can submit the app with a folder of theirs: a SuperLink of ours has one run."""
    served = os.environ.get("FLWR_HOME", "")
    if MARK in os.environ and Path(served).resolve() != (folder / FLOWER).resolve():
        raise FedsslError(f"folder: {safe_text(str(folder))}: this SuperLink serves {Path(served).parent} alone")


class FileView(PlainView):
    """Plain lines into a file that `fedssl server` shows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def say(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def run_at_server(grid: Grid, settings: Raw) -> None:
    """What the server's app does: the run in `folder`, from its beginning or from where it was stopped."""
    folder = Path(str(settings.get("folder", "")))
    if not (folder / FLOWER / DEPLOYMENT).is_file():
        raise FedsslError(f"folder: {str(folder)!r} holds no deployment: `fedssl server` makes one")
    _refuse_other(folder)
    about: dict[str, Any] = read_json(folder / FLOWER / DEPLOYMENT)
    config = typed_config(str(folder / FLOWER / SETTINGS))  # `fedssl server` wrote down there what was typed
    write_atomically(folder / FLOWER / APP_PID, str(os.getpid()))
    try:
        backend = AtSites(grid, about["run"], about["keys"])
        Experiment(config, backend).run(folder, FileView(folder / FLOWER / PROGRESS), force=about["force"])
    except FedsslError as error:
        what = json.dumps({"error": str(error), "exit_code": error.exit_code})
        write_atomically(folder / FLOWER / ERROR, what)
        raise


def key_bytes(public_key: bytes) -> bytes:
    """A public key of a node, from the text of its file to the form in which the grid reports it."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = load_ssh_public_key(public_key)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return bytes(public_key_to_bytes(key))
