"""Settings are constructor arguments: these annotations give each its range, and `describe` reads them back.

A registry maps a name to a class or function; its keyword-only arguments (or dataclass fields) are the settings
that a config may give. experiment/config turns the same annotations into checks and error texts.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval
from pydantic import StringConstraints, TypeAdapter, ValidationError

from fedssl.core.errors import FedsslError

Fraction = Annotated[float, Interval(ge=0, le=1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
# It becomes part of paths and of commands: letters, digits, . _ - only, and no dot first.
ClientName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def check_client_name(name: str, field: str) -> None:
    """Refuses what is no name of a client; `field` says where it was given."""
    try:
        TypeAdapter(ClientName).validate_python(name)
    except ValidationError:
        raise FedsslError(f"{field}: {name!r} is no name: letters, digits, . _ - and no dot first") from None


@dataclass(frozen=True)
class Setting:
    name: str
    annotation: Any
    default: Any  # inspect.Parameter.empty: must be given


def settings_of(factory: Callable[..., Any]) -> dict[str, Setting]:
    """The keyword-only arguments of a factory (also of a functools.partial), with annotations and defaults."""
    return {
        name: Setting(name, Any if one.annotation is one.empty else one.annotation, one.default)
        for name, one in inspect.signature(factory, eval_str=True).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }


def summary_of(factory: Callable[..., Any]) -> str:
    """The first line of a factory's docstring; of a functools.partial its own, if it was given one."""
    own = vars(factory).get("__doc__") if isinstance(factory, partial) else None
    return (own or inspect.getdoc(getattr(factory, "func", factory)) or "").split("\n")[0]


def needs_of(factory: Callable[..., Any]) -> str:
    """What a factory's docstring says from "Needs:" on, as one line; "": nothing."""
    _, marker, rest = (inspect.getdoc(getattr(factory, "func", factory)) or "").partition("Needs:")
    return " ".join((marker + rest).split())
