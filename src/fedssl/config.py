"""From tables to validated settings; an unknown key or a value out of range is an error that names the key."""

import copy
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from fedssl.data.augmentations import RECIPES
from fedssl.data.datasets import DATASETS
from fedssl.data.labelled import choose_labelled
from fedssl.data.own_images import Place
from fedssl.data.partition import PARTITIONS
from fedssl.errors import FedsslError
from fedssl.federation.checkpoint import LEAST_KEPT
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.model_aggregation import AGGREGATORS, Aggregator
from fedssl.federation.model_communication import UPDATE_RULES, BatchNormSharing
from fedssl.federation.privacy import PRIVACY
from fedssl.federation.wire import WireDtype
from fedssl.methods import METHODS
from fedssl.networks.backbones import BACKBONES, AllowCode, in_list, package_of
from fedssl.settings import ClientName, Count, NonNegative, Positive, Setting, settings_of

Raw = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)
STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Choice:
    """An entry of a registry and the settings to build it with, all of them explicit."""

    name: str
    settings: Raw

    def as_raw(self) -> Raw:
        return {"name": self.name, **self.settings}

    def settings_for(self, factory: Callable[..., Any]) -> Raw:
        """Those settings that this function takes: a table may hold those of more than one."""
        return {name: self.settings[name] for name in settings_of(factory)}


class ClientSampling(BaseModel):
    model_config = STRICT
    clients_per_round: Count | None = Field(None, description="clients drawn at random each round; left out: all")


class Network(BaseModel):
    """The backbone, one of these or your own by "package.module:factory", and the heads that stand on it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = "resnet18"
    head_hidden: Count = Field(4096, description="hidden width of projector and predictor")
    head_out: Count = Field(2048, description="output width of projector and predictor")


class Init(BaseModel):
    """The weights with which the backbone starts; heads always start at random."""

    model_config = STRICT
    encoder: Place = Field("", description="a .safetensors file, a run folder or an export; left out: at random")
    skip: list[str] = Field([], description="modules that start at random all the same, such as conv1")
    sha256: str = Field("", description="of the file; a run fills it in and refuses another file ever after")


@dataclass(frozen=True, kw_only=True)
class Uploads:
    """What travels of the networks, whatever the server makes of it."""

    upload: Literal["online", "target"] = "online"
    batchnorm: BatchNormSharing = "average"  # local-*: what of BatchNorm stays at the client
    wire_dtype: WireDtype = "fp32"  # numbers that travel, both ways; bf16: half the bytes, int8: about a quarter


class Evaluation(BaseModel):
    model_config = STRICT
    every: Annotated[int, Ge(0)] = Field(1, description="rounds between two kNN checks; 0: only first and last")
    k: Count = 200
    temperature: Positive = 0.1
    features: Literal["backbone", "projection"] = "backbone"
    linear_probe: bool = Field(False, description="also fit a linear layer for the first and the last encoder")
    linear_epochs: Count = 200


class Failures(BaseModel):
    """What happens when clients fail in a round."""

    model_config = STRICT
    min_clients: Count | None = Field(
        None, description="good replies that a round needs; left out: half of those asked"
    )
    retries: Annotated[int, Ge(0)] = Field(1, description="how often the missing are asked again below min_clients")
    client_timeout: Positive | None = Field(None, description="seconds a client may take for a round; left out: any")
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


class Run(BaseModel):
    model_config = STRICT
    seed: Annotated[int, Ge(0)] = 0
    rounds: Count = 100
    engine: Literal["auto", "in-process", "processes", "flower"] = Field(
        "auto", description="clients one after another, side by side in processes, on Flower; auto: what is faster here"
    )
    workers: Count | Literal["auto"] = Field("auto", description="worker processes; auto: one for each core or GPU")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps …")
    threads: Annotated[int, Ge(0)] = Field(
        0, description="torch threads; 0: PyTorch's choice; other counts, other bits"
    )
    profile: bool = Field(False, description="write where the time of each round goes to profile.jsonl")
    keep_checkpoints: Annotated[int, Ge(LEAST_KEPT)] = Field(2, description="the newest may turn out damaged: keep two")


@dataclass(frozen=True)
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
    # Code that may be imported to build the network: what a person typed or allowed; no setting, no file gives it.
    allow_code: tuple[str, ...] = field(default=(), compare=False)

    @property
    def uploads(self) -> Uploads:
        return Uploads(**self.aggregation.settings_for(Uploads))

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


Factories = Mapping[str, Callable[..., Any]]
CHOICES: dict[str, Factories] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "method": {name: entry.build for name, entry in METHODS.items()},
    "update_rule": UPDATE_RULES,
    "aggregation": AGGREGATORS,
    "privacy": PRIVACY,
    "augmentation": RECIPES,
}
# Settings that a table has whatever its name says: no dataset need know how its labelled images are chosen, no
# aggregator what it is that clients send.
COMMON: dict[str, Callable[..., Any]] = {"data": choose_labelled, "aggregation": Uploads}
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
# What other software calls these tables and settings, for suggestions only.
OTHER_TABLES = {
    **dict.fromkeys(("optimizer", "optim", "training", "train", "trainer", "client"), "local_training"),
    **dict.fromkeys(("model", "backbone", "encoder", "arch"), "network"),
    **dict.fromkeys(("dataset", "datasets"), "data"),
    **dict.fromkeys(("strategy", "aggregator", "server"), "aggregation"),
    **dict.fromkeys(("algorithm", "ssl"), "method"),
    **dict.fromkeys(("eval", "test"), "evaluation"),
}
OTHER_KEYS = {
    **dict.fromkeys(("learning_rate", "lr0", "base_lr"), "lr"),
    **dict.fromkeys(("local_epochs", "num_epochs", "n_epochs"), "epochs"),
    **dict.fromkeys(("batchsize", "bs"), "batch_size"),
    **dict.fromkeys(("num_rounds", "n_rounds", "communication_rounds"), "rounds"),
    **dict.fromkeys(("clients", "n_clients", "number_of_clients"), "num_clients"),
    **dict.fromkeys(("img_size", "resolution"), "image_size"),
    **dict.fromkeys(("type", "architecture", "arch"), "name"),
}


def describe_settings(factory: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """For every setting of a registry's entry: what it accepts, in words, and its default."""
    if isinstance(factory, type) and issubclass(factory, BaseModel):
        return {name: (describe_type(one), _default_text(one.default)) for name, one in factory.model_fields.items()}
    described = {}
    for name, setting in settings_of(factory).items():
        field = FieldInfo.from_annotation(setting.annotation)
        described[name] = (describe_type(field), _default_text(setting.default))
    return described


def _default_text(default: Any) -> str:
    if default is Parameter.empty:
        return "must be given"
    return "not set" if default is None else tomli_w.dumps({"_": default})[4:].strip()


def known_settings(table: str, name: Any) -> set[str] | None:
    """The keys that a table may have when it names this entry; None where the name does not decide that."""
    if not isinstance(name, str):
        return None
    if table == "network":  # nothing is known of a user's own network: it starts from its own defaults
        return {*(settings_of(BACKBONES[name]) if name in BACKBONES else ()), *Network.model_fields}
    if table in CHOICES and name in CHOICES[table]:
        return {*_choice_settings(table, name), "name"}
    return None


def _choice_settings(table: str, name: str) -> dict[str, Setting]:
    common = settings_of(COMMON[table]) if table in COMMON else {}
    return settings_of(CHOICES[table][name]) | common


def resolve(raw: Raw, allow_code: AllowCode = ()) -> Config:
    """Checks every table and fills in every default; imports nothing."""
    raw = copy.deepcopy(raw)
    raw.pop("description", None)
    top = {key: raw.pop(key) for key in list(raw) if key not in TABLES}
    _refuse_unknown("", top, [*Run.model_fields, *TABLES])
    for table, value in raw.items():
        if not isinstance(value, dict):
            raise FedsslError(f"{table}: expected a table of settings, got {value!r}")
    method = _known("method.name", raw.setdefault("method", {}).get("name", "byol"), METHODS)
    # What the method's paper trains it with, unless the config says otherwise.
    raw.setdefault("augmentation", {}).setdefault("name", METHODS[method].recipe)
    raw.setdefault("local_training", {}).setdefault("schedule", METHODS[method].schedule)
    chosen = {table: choice(table, raw.get(table, {}), DEFAULTS.get(table, "")) for table in CHOICES}
    models = {table: _validated(table, model, raw.get(table, {})) for table, model in MODELS.items()}
    training = _settings("local_training", settings_of(LocalTraining), raw["local_training"])
    models["network"] = _complete(models["network"])
    config = Config(
        run=_validated("", Run, top),
        local_training=LocalTraining(**training),
        allow_code=in_list(allow_code),
        **chosen,  # type: ignore[arg-type]
        **models,  # type: ignore[arg-type]
    )
    _check_together(config)
    return config


def choice(table: str, raw: Raw, default: str = "") -> Choice:
    """One table that names an entry of its registry, checked and with every default filled in."""
    raw = dict(raw)
    name = _known(f"{table}.name", raw.pop("name", default), CHOICES[table])
    return Choice(name, _settings(table, _choice_settings(table, name), raw))


def _settings(table: str, settings: dict[str, Setting], raw: Raw) -> Raw:
    """Validated values for all settings, by the annotations of the arguments they stand for."""
    fields: dict[str, Any] = {
        name: (setting.annotation, ... if setting.default is Parameter.empty else setting.default)
        for name, setting in settings.items()
    }
    model = create_model(table, __config__=STRICT, **fields)
    return _validated(table, model, raw).model_dump()


def _validated(table: str, model: type[Model], raw: Raw) -> Model:
    if model.model_config.get("extra") == "forbid":
        _refuse_unknown(table, raw, list(model.model_fields))
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(table, model, dict(problem)) for problem in error.errors()]
        raise FedsslError("; ".join(dict.fromkeys(lines))) from None


def _explain(table: str, model: type[BaseModel], problem: Raw) -> str:
    """One problem in words: the path of the key, what was given, and the range it must be in."""
    key = str(problem["loc"][0])
    path = f"{table}.{key}" if table else key
    if problem["type"] == "missing":
        return f"{path}: must be given"
    expected = describe_type(model.model_fields[key])
    return f"{path}: {problem['input']!r} is not {expected}"


def describe_type(field: FieldInfo) -> str:
    """A field's type and range in words, such as 'a number from 0 to 1'."""
    schema = TypeAdapter(Annotated[field.annotation, "a setting", *field.metadata]).json_schema()  # type: ignore[arg-type]
    return " or ".join(
        _describe_schema(option) for option in schema.get("anyOf", [schema]) if option != {"type": "null"}
    )


def _describe_schema(schema: Raw) -> str:
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}
    text = words.get(schema.get("type", ""), "a valid value")
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{text} from {low:g} to {high:g}"
    bounds = [(low, "{:g} or more"), (above, "above {:g}"), (high, "up to {:g}"), (below, "below {:g}")]
    return " ".join([text, " and ".join(form.format(value) for value, form in bounds if value is not None)]).strip()


def _known(path: str, name: Any, registry: Mapping[str, Any]) -> str:
    if isinstance(name, str) and name in registry:
        return name
    raise FedsslError(f"{path}: there is no {name!r}{nearest(str(name), list(registry))}; known: {', '.join(registry)}")


def _refuse_unknown(table: str, raw: Raw, known: list[str]) -> None:
    for key in raw:
        if key not in known:
            path = f"{table}.{key}" if table else key
            if not table and isinstance(raw[key], dict) and raw[key]:
                path = f"{key}.{next(iter(raw[key]))}"
            meant = _elsewhere(path)
            suggested = f" (did you mean {meant!r}?)" if meant else nearest(key, known)
            raise FedsslError(f"{path}: unknown key{suggested}; known here: {', '.join(known)}")


def _elsewhere(path: str) -> str:
    """The setting that a path of another table, or of other software, stands for; "" when there is none."""
    table, _, key = path.rpartition(".")
    table, key = OTHER_TABLES.get(table, table), OTHER_KEYS.get(key, key)
    settings = {"": set(Run.model_fields), "local_training": set(settings_of(LocalTraining))}
    settings |= {name: set(model.model_fields) for name, model in MODELS.items()}
    settings |= {name: {"name"}.union(*(_choice_settings(name, one) for one in CHOICES[name])) for name in CHOICES}
    settings["network"].update(*(settings_of(factory) for factory in BACKBONES.values()))
    tables = (table,) if key == "name" else (table, *settings)
    meant = [f"{name}.{key}".removeprefix(".") for name in tables if key in settings.get(name, ())]
    return meant[0] if meant and meant[0] != path else ""


def nearest(word: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _complete(network: BaseModel) -> Network:
    """The network with every setting of its backbone, so that one left out is the same as one with its default."""
    assert isinstance(network, Network)
    if package_of(network.name):  # the user's own: its settings are its own business
        return network
    settings = _settings("network", settings_of(BACKBONES[network.name]), network.model_extra or {})
    return network.model_copy(update=settings)


def _check_together(config: Config) -> None:
    num_clients = config.partition.settings["num_clients"]
    per_round = config.client_sampling.clients_per_round
    if per_round is not None and num_clients is not None and per_round > num_clients:
        raise FedsslError(
            f"client_sampling.clients_per_round: {per_round} is more than partition.num_clients ({num_clients})"
        )
    if num_clients is not None:
        check_round(config, per_round or num_clients)
    if config.update_rule.settings.get("lambda_at") == "client" and config.uploads.upload == "target":
        raise FedsslError(
            "update_rule.lambda_at: 'client' compares the online encoder, but aggregation.upload = \"target\" averages "
            "another: use 'server'"
        )
    _check_privacy(config)


def _check_privacy(config: Config) -> None:
    """Refuses whatever would let exact values of a client out, or does not bound what one client can do."""
    if config.privacy.name == "none":
        return
    rule, method = config.update_rule, METHODS[config.method.name]
    if not UPDATE_RULES[rule.name].shares:
        raise FedsslError(f"privacy.name: with update_rule.name = {rule.name!r} nothing is shared: use 'none'")
    if config.uploads.batchnorm == "average":
        raise FedsslError(
            "privacy.name: exact BatchNorm statistics would leave the clients: "
            "set aggregation.batchnorm to 'local-statistics' or 'local-layers'"
        )
    if config.aggregation.name != "weighted-average":
        raise FedsslError(
            f"privacy.name: aggregation.name = {config.aggregation.name!r} does not bound what one client does to the "
            "result: use 'weighted-average' (its weights are then equal)"
        )
    if config.failures.damaged_state == "start-over" and config.privacy.settings["placement"] == "local":
        raise FedsslError(
            "failures.damaged_state: a client that adds noise of its own keeps the key of it in its state and cannot "
            "start over without it: use 'error'"
        )
    if method.leaves:
        raise FedsslError(
            f"privacy.name: {config.method.name} also sends {method.leaves}, which no noise protects: "
            "use another method.name"
        )
    if rule.settings.get("lambda_at") == "server" and rule.settings.get("scale") is None:
        raise FedsslError(
            "privacy.name: lambda_k would be made at the server from a client's exact weights: "
            "set update_rule.lambda_at to 'client', or a fixed update_rule.scale"
        )


def check_round(config: Config, asked: int) -> None:
    """Refuses a quorum or an aggregator that rounds of so many clients cannot satisfy."""
    needed = config.failures.min_clients
    if needed is not None and needed > asked:
        raise FedsslError(f"failures.min_clients: {needed} is more than the {asked} clients of a round")
    if UPDATE_RULES[config.update_rule.name].shares:
        make_aggregator(config.aggregation).check(asked)


def make_aggregator(chosen: Choice) -> Aggregator:
    factory = AGGREGATORS[chosen.name]
    return factory(**chosen.settings_for(factory))
