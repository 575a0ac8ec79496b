"""Settings in words: what a key accepts, its default, and what is wrong with a value."""

from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from fedssl.core.registry import Registry
from fedssl.core.settings import settings_of
from fedssl.experiment.records.run_record import Table

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


def describe_type(field: FieldInfo) -> str:
    """A field's type and range in words, such as 'a number from 0 to 1'."""
    if registry := next((one for one in field.metadata if isinstance(one, Registry)), None):
        default = [] if field.is_required() else [field.default]
        return f"one of {', '.join(dict.fromkeys(filter(None, [*default, *registry])))}"
    schema = TypeAdapter(Annotated[field.annotation, "a setting", *field.metadata]).json_schema()  # type: ignore[arg-type]
    return " or ".join(
        _describe_schema(option) for option in schema.get("anyOf", [schema]) if option != {"type": "null"}
    )


def _describe_schema(schema: Table) -> str:
    if "words" in schema:
        return str(schema["words"])
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    names = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}
    names["array"] = "a list"
    text = names.get(schema.get("type", ""), "a valid value")
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{text} from {low:g} to {high:g}"
    bounds = [(low, "{:g} or more"), (above, "above {:g}"), (high, "up to {:g}"), (below, "below {:g}")]
    return " ".join([text, " and ".join(form.format(value) for value, form in bounds if value is not None)]).strip()


NOT_SET = "–"


def flatten(config: Table, prefix: str = "") -> dict[str, Any]:
    """{"update_rule": {"tau": 0.7}} -> {"update_rule.tau": 0.7}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def setting_text(value: Any) -> str:
    """A setting as it would be written in a config."""
    if value is None:
        return NOT_SET
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
