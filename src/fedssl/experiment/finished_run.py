"""A run folder read back: its config, records and partition, the images it was made with, and its encoders."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedssl.core.errors import FedsslError
from fedssl.core.files import Place
from fedssl.core.registry import AllowCode
from fedssl.data.dataset import Dataset
from fedssl.data.partition import Partition
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.build.networks import build_method
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.resolve import names_in
from fedssl.experiment.config.schema import Config, Init
from fedssl.experiment.records.encoder_file import read_encoder
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import (
    SUMMARY,
    check_config,
    check_files,
    read_config,
    read_environment,
    read_summary,
)
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import ClientWeights
from fedssl.networks.heads import Encoder


@dataclass(frozen=True)
class FinishedRun:
    """Reads lazily: listing a hundred runs touches no image and no weight."""

    folder: RunFolder
    allow_code: AllowCode = ()

    @classmethod
    def open(cls, path: Place, allow_code: AllowCode = ()) -> "FinishedRun":
        """Refuses at once a run that names code which was not allowed."""
        folder = RunFolder(Path(path))
        for needed in ("config.toml", SUMMARY):
            if not (folder.path / needed).exists():
                raise FedsslError(f"{folder.path}: not a run folder ({needed} is missing)")
        read_summary(folder.path)  # a damaged one is refused now, whatever is wanted
        for setting, registry, name in names_in(read_config(folder.path)):
            registry.check(name, allow_code, f"{folder.path / 'config.toml'}: {setting}")
        return cls(folder, allow_code)

    @cached_property
    def config(self) -> Config:
        return load_config(str(check_config(self.folder.path)), allow_code=self.allow_code)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.folder.path)

    @cached_property
    def environment(self) -> dict[str, Any]:
        check_files(self.folder.path, "environment.json")
        return read_environment(self.folder.path)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return self.folder.read_rounds()

    @cached_property
    def partition(self) -> Partition:
        check_files(self.folder.path, self.folder.partition.name)
        return Partition.load(self.folder.partition)

    @cached_property
    def dataset(self) -> Dataset:
        return build_dataset(self.config.data)

    def random_encoder(self) -> Encoder:
        """The run's network with random weights by its seed, also where the run itself started from a file."""
        train = self.dataset.train
        config = replace(self.config, init=Init())
        return build_method(config, train.channels, train.image_size).online_encoder

    def global_encoder(self) -> Encoder:
        """W_g after the last round."""
        path = self.folder.encoder
        if not path.exists():
            raise FedsslError(f"{path}: the run has no encoder: run the same `fedssl run` command again")
        return self._loaded(path, read_encoder(path).tensors)

    def client_rounds(self) -> dict[int, int]:
        """The clients that trained, each with its last accepted round."""
        last: dict[int, int] = {}
        for record in self.rounds:
            last |= {client["client"]: record["round"] for client in record["clients"]}
        return dict(sorted(last.items()))

    def client_encoder(self, client: int) -> Encoder:
        """A client's own online encoder as it was after its last accepted round."""
        path, weights = self.client_weights(client)
        return self._loaded(path, weights.online.tensors())

    def client_weights(self, client: int) -> tuple[Path, ClientWeights]:
        """A client's own networks after its last accepted round, and where they are stored."""
        store, last = ClientStore(self.folder.clients), self.client_rounds()
        if client not in last:
            raise FedsslError(f"{self.folder.path}: client {client} never trained in this run, it has no encoder")
        return store.path(client, last[client]), store.load(client, last[client]).weights

    def _loaded(self, path: Path, tensors: dict[str, Tensor]) -> Encoder:
        encoder = self.random_encoder()
        try:
            encoder.load_state_dict(tensors)
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise FedsslError(f"{path}: belongs to another network than config.toml says: {first}") from None
        return encoder
