"""From tables to validated settings; an unknown key or a value out of range is an error that names the key."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from inspect import Parameter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from fedssl.core.errors import FedsslError
from fedssl.core.registry import AllowCode, Registry, in_list, nearest
from fedssl.core.settings import Setting, settings_of
from fedssl.experiment.config.messages import OTHER_KEYS, OTHER_TABLES, describe_type
from fedssl.experiment.config.schema import (
    AUTOMATIC,
    CHOICES,
    COMMON,
    DEFAULTS,
    ENGINES,
    MODELS,
    STRICT,
    TABLES,
    Choice,
    Config,
    Network,
    Raw,
    Run,
)
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.privacy.mechanism import ClientDP
from fedssl.methods import METHODS
from fedssl.networks.backbones import BACKBONES

Model = TypeVar("Model", bound=BaseModel)
NAMED: dict[str, Registry[Any]] = {**CHOICES, "network": BACKBONES}  # the tables that name an entry


def known_settings(table: str, name: Any) -> set[str] | None:
    """The keys that a table may have when it names this entry; None where the name does not decide that."""
    if table not in NAMED or not isinstance(name, str):
        return None
    own = settings_of(NAMED[table][name]) if name in NAMED[table] else ()  # others' start from their own defaults
    return {*own, *_common(table), "name"}


def _common(table: str) -> dict[str, Setting]:
    """The settings that a table has whatever its name says."""
    return settings_of(COMMON[table]) if table in COMMON else {}


def names_in(raw: Raw) -> Iterator[tuple[str, Registry[Any], Any]]:
    """Every name of an entry that tables give, with its setting and its registry; none is checked."""
    for table, registry in NAMED.items():
        given = raw.get(table)
        if isinstance(given, dict) and "name" in given:
            yield f"{table}.name", registry, given["name"]


def resolve(raw: Raw, allow_code: AllowCode = ()) -> Config:
    """Checks every table and fills in every default; imports what was allowed, but no network."""
    raw = copy.deepcopy(raw)
    raw.pop("description", None)
    automatic = tuple(path for path in AUTOMATIC if _is_automatic(raw, path))
    top = {key: raw.pop(key) for key in list(raw) if key not in TABLES}
    _refuse_unknown("", top, [*Run.model_fields, *TABLES])
    for table, value in raw.items():
        if not isinstance(value, dict):
            raise FedsslError(f"{table}: expected a table of settings, got {value!r}")
    method = METHODS.find(raw.get("method", {}).get("name", DEFAULTS["method"]), allow_code)
    # What the method's paper trains it with, unless the config says otherwise.
    raw.setdefault("augmentation", {}).setdefault("name", method.recipe)
    raw.setdefault("local_training", {}).setdefault("schedule", method.schedule)
    chosen = {table: choice(table, raw.get(table, {}), allow_code) for table in CHOICES}
    if public := method.public_images(chosen["method"].settings).data:
        CHOICES["data"].check(public, allow_code, "method.public_data")
    models = {table: validated(table, model, raw.get(table, {})) for table, model in MODELS.items()}
    training = _settings("local_training", raw["local_training"], LocalTraining)
    models["network"] = _complete(models["network"])
    run = validated("", Run, top)
    if run.engine != Run.model_fields["engine"].default:
        ENGINES.check(run.engine, allow_code)
    config = Config(
        run=run,
        local_training=LocalTraining(**training),
        allow_code=in_list(allow_code),
        automatic=automatic,
        **chosen,  # type: ignore[arg-type]
        **models,  # type: ignore[arg-type]
    )
    _check_together(config)
    return config


def _is_automatic(raw: Raw, path: str) -> bool:
    """Takes a setting that says "auto" out of the tables: until it is chosen, its default stands there."""
    table, _, key = path.rpartition(".")
    place = raw.get(table) if table else raw
    if not isinstance(place, dict) or place.get(key) != "auto":
        return False
    known = known_settings(table, place.get("name", DEFAULTS.get(table)))
    if known is not None and key not in known:
        return False  # an error, as with any other value
    del place[key]
    return True


def choice(table: str, raw: Raw, allow_code: AllowCode = ()) -> Choice:
    """One table that names an entry of its registry, checked and with every default filled in."""
    raw = dict(raw)
    name = raw.pop("name", DEFAULTS.get(table))
    factory = CHOICES[table].find(name, allow_code)
    factories = [factory, *filter(None, [COMMON.get(table)])]
    values = _settings(table, raw, *factories)
    for key, setting in _settings_of_all(factories).items():  # some name entries of a registry in their turn
        for registry in getattr(setting.annotation, "__metadata__", ()):
            if isinstance(registry, Registry) and values[key] != setting.default:
                registry.check(values[key], allow_code, f"{table}.{key}")
    return Choice(name, values, factory)


def _settings(table: str, raw: Raw, *factories: Callable[..., Any]) -> Raw:
    """Validated values for all settings, by the annotations of the arguments they stand for."""
    return validated(table, _model_of(table, *factories), raw).model_dump()


@lru_cache(maxsize=256)  # making one costs a hundred times what validating by it does
def _model_of(table: str, *factories: Callable[..., Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (setting.annotation, ... if setting.default is Parameter.empty else setting.default)
        for name, setting in _settings_of_all(factories).items()
    }
    return create_model(table, __config__=STRICT, **fields)


def _settings_of_all(factories: Iterable[Callable[..., Any]]) -> dict[str, Setting]:
    return {name: setting for factory in factories for name, setting in settings_of(factory).items()}


def validated(table: str, model: type[Model], raw: Raw, *, of_a_run: bool = True) -> Model:
    """A table as its model; what is wrong is named by its key, with the range that it must be in.

    `of_a_run`: an unknown key may be meant for another table of a run's settings.
    """
    if model.model_config.get("extra") == "forbid":
        _refuse_unknown(table, raw, list(model.model_fields), of_a_run=of_a_run)
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


def _refuse_unknown(table: str, raw: Raw, known: list[str], *, of_a_run: bool = True) -> None:
    for key in raw:
        if key not in known:
            path = f"{table}.{key}" if table else key
            if not table and isinstance(raw[key], dict) and raw[key]:
                path = f"{key}.{next(iter(raw[key]))}"
            meant = _elsewhere(path) if of_a_run else ""
            suggested = f" (did you mean {meant!r}?)" if meant else nearest(key, known)
            raise FedsslError(f"{path}: unknown key{suggested}; known here: {', '.join(known)}")


def _elsewhere(path: str) -> str:
    """The setting that a path of another table, or of other software, stands for; "" when there is none."""
    table, _, key = path.rpartition(".")
    table, key = OTHER_TABLES.get(table, table), OTHER_KEYS.get(key, key)
    settings = {"": set(Run.model_fields), "local_training": set(settings_of(LocalTraining))}
    settings |= {name: set(model.model_fields) for name, model in MODELS.items()}
    for name, registry in NAMED.items():
        settings[name] = {"name", *_common(name)}.union(*(settings_of(factory) for factory in registry.values()))
    tables = (table,) if key == "name" else (table, *settings)
    meant = [f"{name}.{key}".removeprefix(".") for name in tables if key in settings.get(name, ())]
    return meant[0] if meant and meant[0] != path else ""


def _complete(network: BaseModel) -> Network:
    """The network with every setting of its backbone, so that one left out is the same as one with its default."""
    assert isinstance(network, Network)
    if BACKBONES.path(network.name):  # somebody else's: its settings are its own business
        return network
    return network.model_copy(update=network_settings(network.name, network.model_extra or {}))


def network_settings(name: str, given: Raw) -> Raw:
    """Every setting of a backbone of ours, checked."""
    return _settings("network", given, BACKBONES[name])


def _check_together(config: Config) -> None:
    num_clients = config.partition.settings["num_clients"]
    per_round = config.client_sampling.clients_per_round
    if per_round is not None and num_clients is not None and per_round > num_clients:
        raise FedsslError(
            f"client_sampling.clients_per_round: {per_round} is more than partition.num_clients ({num_clients})"
        )
    private = config.privacy.build()
    if config.uploads.secure:
        _check_secure(config, private)
    if num_clients is not None:
        check_round(config, per_round or num_clients)
    if private is not None:
        _check_privacy(config, private)
    if not config.uploads.secure and private is not None and private.needs_sum:
        raise FedsslError("privacy.placement: 'distributed' hides nothing in a single upload: set aggregation.secure")
    if problem := config.update_rule.build().problem(config.uploads.upload, private is not None):
        raise FedsslError(problem)
    if config.evaluation.at_sites:
        _check_at_sites(config, private)
    for term in ("decorrelation", "uniformity"):
        if getattr(config.local_training, term) and not config.method.factory.whole_images:
            raise FedsslError(
                f"local_training.{term}: {config.method.name} makes no vector of a whole image whose features could be "
                "looked at: set it to 0, or use another method.name"
            )


def _check_at_sites(config: Config, private: ClientDP | None) -> None:
    """Refuses to ask sites for counts where there is nothing to look at, or where they promise to send noise only."""
    if not config.update_rule.factory.shares:
        raise FedsslError(
            f"evaluation.at_sites: with update_rule.name = {config.update_rule.name!r} there is no global encoder: "
            "use evaluation.clients"
        )
    if private is not None and private.at_clients:
        raise FedsslError(
            f"evaluation.at_sites: counts would leave without noise, privacy.placement = {private.placement!r} "
            "promises that nothing does: set it to false"
        )


def _check_privacy(config: Config, private: ClientDP) -> None:
    """Refuses whatever would let exact values of a client out, or does not bound what one client can do."""
    rule, method = config.update_rule, config.method
    if not rule.factory.shares:
        raise FedsslError(f"privacy.name: with update_rule.name = {rule.name!r} nothing is shared: use 'none'")
    if config.uploads.shares_statistics:
        raise FedsslError(
            "privacy.name: exact BatchNorm statistics would leave the clients: "
            "set aggregation.batchnorm to 'local-statistics' or 'local-layers'"
        )
    if not config.aggregation.factory.bounded:
        raise FedsslError(
            f"privacy.name: aggregation.name = {config.aggregation.name!r} does not bound what one client does to the "
            "result: use 'weighted-average' (its weights are then equal)"
        )
    if config.failures.damaged_state == "start-over" and private.at_clients:
        raise FedsslError(
            "failures.damaged_state: a client that adds noise of its own keeps the key of it in its state and cannot "
            "start over without it: use 'error'"
        )
    if method.factory.leaves:
        raise FedsslError(
            f"privacy.name: {method.name} also sends {method.factory.leaves}, which no noise protects: "
            "use another method.name"
        )


def _check_secure(config: Config, private: ClientDP | None) -> None:
    """Refuses what needs more of a client than its part of a sum."""
    rule, method, uploads = config.update_rule, config.method, config.uploads
    wrong = "aggregation.secure: the server sees the sum of the uploads only, but"
    if not rule.factory.shares:
        raise FedsslError(f"aggregation.secure: with update_rule.name = {rule.name!r} nothing is shared: set it false")
    if config.aggregation.factory.needs_single_uploads:
        raise FedsslError(
            f"{wrong} aggregation.name = {config.aggregation.name!r} looks at single ones: use 'weighted-average'"
        )
    if why := rule.build().needs_single_results():
        raise FedsslError(f"{wrong} update_rule.name = {rule.name!r} needs more: {why}")
    if method.factory.leaves:
        raise FedsslError(f"{wrong} {method.name} also sends {method.factory.leaves}: use another method.name")
    if uploads.wire_dtype != "fp32":
        raise FedsslError(
            f"aggregation.wire_dtype: {uploads.wire_dtype!r} cannot be summed under masks: use 'fp32' with secure"
        )
    if private is not None and not private.needs_sum:
        raise FedsslError(
            f"privacy.placement: {private.placement!r} with aggregation.secure: use 'distributed', the noise of "
            "'central' in the sum without a server that is trusted"
        )


def check_round(config: Config, sampled: int) -> None:
    """Refuses a quorum or an aggregator that rounds of so many clients cannot satisfy."""
    if config.uploads.secure:
        _check_threshold(config, sampled)
    needed = config.failures.min_clients
    if needed is not None and needed > sampled:
        raise FedsslError(f"failures.min_clients: {needed} is more than the {sampled} clients of a round")
    if config.update_rule.factory.shares:
        config.aggregation.build().check(sampled)


def _check_threshold(config: Config, sampled: int) -> None:
    """Which sums a round of so many clients can have, and how many of them add noise."""
    from fedssl.federation.secure.stages import check_threshold

    threshold, honest = check_threshold(sampled, config.uploads.secure_threshold), config.privacy.settings.get("honest")
    if honest is not None and honest > threshold:
        raise FedsslError(
            f"privacy.honest: {honest} clients, but a sum may have no more than {threshold} "
            "(aggregation.secure_threshold)"
        )
