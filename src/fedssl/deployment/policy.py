"""A site's policy: what a server may ask of it; from policy.toml, with options of `fedssl client` on top."""

import tomllib
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Literal, Self

import tomli_w
from annotated_types import Ge
from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from fedssl.core.errors import FedsslError
from fedssl.core.settings import Count, NonNegative, Positive
from fedssl.experiment.config.messages import describe_type
from fedssl.experiment.config.resolve import NAMED, validated
from fedssl.experiment.config.schema import STRICT, Raw
from fedssl.federation.messages import ClientError

_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
Hours = Annotated[
    str,
    StringConstraints(pattern=f"^({_CLOCK}-{_CLOCK})?$"),
    WithJsonSchema({"words": "hours of the day such as 18:00-06:00, or empty"}),
]


class Policy(BaseModel):
    """What this site gives and asks for, whatever a server says; a task beyond it is refused."""

    model_config = STRICT
    approval: Literal["automatic", "ask"] = Field(
        "automatic", description="ask: a new run waits until a person here says `fedssl client approve RUN`"
    )
    share_reasons: bool = Field(False, description="tell the server why this policy refused; false: a code only")
    methods: list[str] = Field([], description="methods that may be trained here; empty: all (fedssl methods)")
    networks: list[str] = Field([], description="networks; empty: all (fedssl networks)")
    update_rules: list[str] = Field([], description="update rules; empty: all (fedssl rules)")
    max_rounds: Count | None = Field(None, description="rounds of a run, also counted here")
    max_epochs: Count | None = Field(None, description="epochs over this site's images in a round")
    max_hours: Positive | None = Field(None, description="hours that this machine works for a run, in all")
    max_upload: Positive | None = Field(None, description="MB that may leave in a round")
    hours: Hours = Field("", description="when tasks are begun, by this machine's clock; empty: always")
    require_privacy: Literal["any", "central", "distributed", "local"] = Field(
        "any", description="central: updates of bounded length; distributed, local: and noise before they leave"
    )
    min_noise: NonNegative = Field(0.0, description="the least privacy.noise_multiplier")
    max_clip: Positive | None = Field(None, description="the largest privacy.clip_norm")
    require_secure_aggregation: bool = Field(False, description="only runs whose server sees sums, no single upload")
    min_sites: Annotated[int, Ge(2)] = Field(2, description="the least sites that a secure sum must hold")
    allow_features: bool = Field(False, description="also methods that send features of images (fedca, fedsc)")
    evaluation: bool = Field(
        True, description="where labels are given here, count how many images the model has right; only counts leave"
    )
    max_disk: NonNegative = Field(50.0, description="GB that the state folder may take")
    max_runs: Count = Field(100, description="runs that the state folder may hold")

    @property
    def private(self) -> bool:
        return self.require_privacy != "any" or self.min_noise > 0 or self.max_clip is not None

    def as_node(self) -> dict[str, str]:
        """What differs from the defaults, as the settings of a node carry it."""
        given = self.model_dump(exclude_defaults=True).items()
        return {_option(key): ",".join(value) if isinstance(value, list) else str(value) for key, value in given}

    @classmethod
    def of_node(cls, node: Raw) -> Self:
        given: Raw = {key: node[_option(key)] for key in cls.model_fields if _option(key) in node}
        lists = {key: text.split(",") for key, text in given.items() if cls.model_fields[key].default == []}
        return cls.model_validate(given | lists, strict=False)

    def check_hours(self, now: datetime) -> None:
        """Refuses to begin a task outside the hours of the day; one that was begun is finished."""
        if self.hours:
            begin, end = (time.fromisoformat(text) for text in self.hours.split("-"))
            inside = begin <= now.time() < end if begin < end else now.time() >= begin or now.time() < end
            if not inside:
                raise ClientError("closed", f"hours: this site takes tasks from {begin:%H:%M} to {end:%H:%M}")


TABLES = {"methods": "method", "networks": "network", "update_rules": "update_rule"}  # of a run, by our lists
# What `fedssl client policy init` writes where it is stricter than what holds without a policy.
SAFE: Raw = {
    "approval": "ask",
    "max_rounds": 500,
    "max_epochs": 20,
    "max_hours": 500.0,
    "max_upload": 500.0,
    "require_secure_aggregation": True,
    "min_sites": 3,
}


def load_policy(path: Path | None, options: Raw) -> Policy:
    """The policy in a file, or without one what holds by default, and over it the options that were given.

    >>> from fedssl.deployment.policy import load_policy
    >>> load_policy(None, {"max_rounds": 50}).max_rounds
    50
    """
    raw = _read(path) if path else {}
    try:
        typed = validated("", Policy, options, of_a_run=False)
    except FedsslError as error:
        field, _, rest = str(error).partition(":")
        raise FedsslError(f"--{_option(field)}:{rest}") from None
    return Policy.model_validate(raw | typed.model_dump(include=set(options)))


def _read(path: Path) -> Raw:
    """The tables of a policy, checked; whatever is wrong is one line with the file and the field."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        policy = validated("", Policy, raw, of_a_run=False)
        for field, table in TABLES.items():
            for name in getattr(policy, field):
                NAMED[table].path(name, field)
    except OSError as error:
        raise FedsslError(
            f"{path}: cannot be read ({error.strerror}): make one with `fedssl client policy init`"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedsslError(f"{path}: not readable as TOML ({error})") from None
    except FedsslError as error:
        raise FedsslError(f"{path}: {error}") from None
    return raw


def policy_text() -> str:
    """A policy with safe values, every field with its meaning and range."""
    lines = [
        "# What this site gives and asks for, whatever a server says: `fedssl client --policy FILE`. An option of the",
        "# same name replaces a line. Read when the client starts: restart it after a change.",
        "",
    ]
    for name, field in Policy.model_fields.items():
        value = SAFE.get(name, field.default)
        example = {"max_clip": 1.0}.get(name) if value is None else value
        lines += [f"# {field.description} ({describe_type(field)})"]
        lines += [("# " if value is None else "") + tomli_w.dumps({name: example}).strip(), ""]
    return "\n".join(lines)


def _option(field: str) -> str:
    return field.replace("_", "-")
