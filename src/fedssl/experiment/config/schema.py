"""The settings of a run: every table, its keys, ranges and defaults."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedssl.core.registry import Registry
from fedssl.core.settings import ClientName, Count, NonNegative, Positive, settings_of
from fedssl.data import DATASETS
from fedssl.data.augmentation.recipes import RECIPES
from fedssl.data.holdout import choose_labelled
from fedssl.data.own.layouts import absolute
from fedssl.data.partition import PARTITIONS
from fedssl.federation.checkpoint import LEAST_KEPT
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_communication import UPDATE_RULES, BatchNormSharing
from fedssl.federation.privacy.mechanism import PRIVACY
from fedssl.federation.wire import WireDtype
from fedssl.methods import METHODS
from fedssl.networks.libraries import is_published

Raw = dict[str, Any]

ENGINES: Registry[Any] = Registry(
    "engines",
    "engine",
    {
        "in-process": "fedssl.experiment.backends:OneByOne",
        "processes": "fedssl.experiment.backends:SideBySide",
        "flower": "fedssl.experiment.backends:Simulated",
    },
)
ENGINES_OF_AUTO = ("in-process", "processes")  # between which "auto" chooses: all in this process, or in workers

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Choice:
    """An entry of a registry and the settings to build it with, all of them explicit."""

    name: str
    settings: Raw
    factory: Any = field(compare=False, repr=False)

    def as_raw(self) -> Raw:
        return {"name": self.name, **self.settings}

    def settings_for(self, factory: Callable[..., Any]) -> Raw:
        """Those settings that this function takes: a table may hold those of more than one."""
        return {name: self.settings[name] for name in settings_of(factory)}

    def build(self, *arguments: Any) -> Any:
        return self.factory(*arguments, **self.settings_for(self.factory))


class ClientSampling(BaseModel):
    model_config = STRICT
    clients_per_round: Count | None = Field(None, description="clients drawn at random each round; default: all")


class Network(BaseModel):
    """The backbone, one of these or your own by "package.module:factory", and the heads that stand on it.

    `pretrained`, a weight file, or true where timm or torchvision can fetch weights, is short for init.encoder.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = "resnet18"
    head_hidden: Count = Field(4096, description="hidden width of projector and predictor")
    head_out: Count = Field(2048, description="output width of projector and predictor")


class Init(BaseModel):
    """The weights with which the backbone starts; heads always start at random."""

    model_config = STRICT
    encoder: Annotated[str, AfterValidator(lambda text: text if is_published(text) else absolute(text))] = Field(
        "", description="a .safetensors file, a run folder, an export, or timm:NAME to fetch; default: at random"
    )
    skip: list[str] = Field([], description="modules that start at random all the same, such as conv1")
    sha256: str = Field("", description="of the file; a run fills it in and refuses another file ever after")
    required: bool = Field(False, description="refuse to start at random")


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """What travels of the networks, whatever the server makes of it."""

    upload: Literal["online", "target"] = "online"
    batchnorm: BatchNormSharing = "average"  # local-*: what of BatchNorm stays at the client
    wire_dtype: WireDtype = "fp32"  # numbers that travel, both ways; bf16: half the bytes, int8: about a quarter
    secure: bool = False  # uploads are masked: the server learns their sum, and of no single client anything
    secure_threshold: Count | None = None  # clients that a secure sum needs; default: more than two thirds of a round
    secure_max_examples: Count | None = None  # no client has more images; default: those of the largest, if known here
    secure_limit: Positive = 8.0  # the largest change of a weight in a round; a client refuses to send more
    secure_statistics_limit: Positive = 1024.0  # the same of BatchNorm statistics

    @property
    def shares_statistics(self) -> bool:
        """Whether BatchNorm's statistics are averaged; else the global encoder has none of its own."""
        return self.batchnorm == "average"


class Evaluation(BaseModel):
    model_config = STRICT
    every: Annotated[int, Ge(0)] = Field(1, description="rounds between two kNN checks; 0: only first and last")
    k: Count = 200
    temperature: Positive = 0.1
    features: Literal["backbone", "projection"] = "backbone"
    linear_probe: bool = Field(False, description="also fit a linear layer for the first and the last encoder")
    linear_epochs: Count = 200
    clients: bool = Field(False, description="also every client's own encoder after the last round, by kNN")
    at_sites: bool = Field(
        False, description="also each client with labels of its own, by kNN and linear probe: it sends counts only"
    )


class Failures(BaseModel):
    """What happens when clients fail in a round."""

    model_config = STRICT
    min_clients: Count | None = Field(
        None, description="good replies that a round needs; default: half of those sampled"
    )
    retries: Annotated[int, Ge(0)] = Field(1, description="how often the missing are retried below min_clients")
    client_timeout: Positive | None = Field(None, description="seconds a client may take for a round; default: any")
    damaged_state: Literal["error", "start-over"] = Field(
        "error", description="a client whose own state is damaged: an error, or it starts over from the global model"
    )


class Flower(BaseModel):
    """Clients carried by Flower: in simulation on Ray, or each at its own site."""

    model_config = STRICT
    cpus_per_client: Positive = Field(1.0, description="of a simulated client; so many run side by side")
    gpus_per_client: NonNegative = Field(0.0, description="of a simulated client; 0.5: two share a GPU")
    ray_address: str = Field("", description="a Ray cluster; the run folder must be on a disk that it shares")
    clients: list[ClientName] = Field([], description="of a deployment: the names of its clients, in order")
    patience: Positive = Field(600.0, description="seconds that a client of a deployment may be away in a round")
    approval_patience: Positive = Field(
        86_400.0, description="seconds that the people at a site may take to approve a run, or until its hours"
    )


class Run(BaseModel):
    model_config = STRICT
    seed: Annotated[int, Ge(0)] = 0
    rounds: Count = 100
    engine: Annotated[str, ENGINES] = Field(
        "auto", description="clients one after another, side by side in processes, on Flower; auto: what is faster here"
    )
    workers: Count | Literal["auto"] = Field("auto", description="worker processes; auto: one for each core or GPU")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps …")
    threads: Annotated[int, Ge(0)] = Field(
        0, description="torch threads; 0: PyTorch's choice; other counts, other bits"
    )
    profile: bool = Field(False, description="write where the time of each round goes to profile.jsonl")
    keep_checkpoints: Annotated[int, Ge(LEAST_KEPT)] = Field(2, description="the newest may turn out damaged: keep two")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole of a run's settings, resolved: what is written to the run folder and can be run again."""

    run: Run
    data: Choice
    partition: Choice
    client_sampling: ClientSampling
    method: Choice
    network: Network
    init: Init
    update_rule: Choice
    aggregation: Choice
    privacy: Choice
    augmentation: Choice
    local_training: LocalTraining
    evaluation: Evaluation
    failures: Failures
    flower: Flower
    # Code that may be imported to build all this: what a person typed or allowed; no setting, no file gives it.
    allow_code: tuple[str, ...] = field(default=(), compare=False)
    automatic: tuple[str, ...] = ()  # of AUTOMATIC: those that are still to be chosen

    @property
    def uploads(self) -> Uploads:
        return Uploads(**self.aggregation.settings_for(Uploads))

    def with_chosen(self, values: Raw) -> "Config":
        """With values for what was "auto", by path."""
        tables: dict[str, Raw] = {"": {}, "local_training": {}, "data": {}, "network": {}}
        for path, value in values.items():
            table, _, key = path.rpartition(".")
            tables[table][key] = value
        return replace(
            self,
            run=self.run.model_copy(update=tables[""]),
            local_training=replace(self.local_training, **tables["local_training"]),
            data=replace(self.data, settings=self.data.settings | tables["data"]),
            network=self.network.model_copy(update=tables["network"]),
            automatic=tuple(path for path in self.automatic if path not in values),
        )

    def as_raw(self) -> Raw:
        raw = self.run.model_dump()
        for name in CHOICES:
            raw[name] = getattr(self, name).as_raw()
        for name in MODELS:
            raw[name] = getattr(self, name).model_dump()
        raw["local_training"] = vars(self.local_training).copy()
        return _without_none(raw)

    def as_toml(self) -> str:
        return tomli_w.dumps(self.as_raw())


def _without_none(raw: Raw) -> Raw:
    """TOML has no null: a setting that is None is left out."""
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in raw.items() if v is not None}


CHOICES: dict[str, Registry[Any]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "method": METHODS,
    "update_rule": UPDATE_RULES,
    "aggregation": AGGREGATORS,
    "privacy": PRIVACY,
    "augmentation": RECIPES,
}

# Settings that a table has whatever its name says: no dataset need know how its labelled images are chosen, no
# aggregator what it is that clients send.
COMMON: dict[str, Callable[..., Any]] = {"data": choose_labelled, "aggregation": Uploads, "network": Network}

DEFAULTS = {
    "data": "cifar10",
    "partition": "classes",
    "method": "byol",
    "update_rule": "fedema",
    "aggregation": "weighted-average",
    "privacy": "none",
}

MODELS: dict[str, type[BaseModel]] = {
    "client_sampling": ClientSampling,
    "network": Network,
    "init": Init,
    "evaluation": Evaluation,
    "failures": Failures,
    "flower": Flower,
}

TABLES = (*CHOICES, *MODELS, "local_training")
# Settings that may be "auto": those that the number of images decides, and those that the weights to start from do.
BY_IMAGES = ("rounds", "local_training.batch_size", "local_training.lr")
BY_WEIGHTS = ("data.image_size", "data.resampling", "network.mean", "network.std")
AUTOMATIC = (*BY_IMAGES, *BY_WEIGHTS)
