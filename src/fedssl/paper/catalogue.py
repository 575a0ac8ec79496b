"""The experiments of the paper as data: one TOML file each, with rows, columns and what the paper prints."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedssl.core.errors import FedsslError
from fedssl.core.registry import unknown
from fedssl.evaluation.protocols import PROTOCOLS, in_run
from fedssl.experiment.config.schema import Raw
from fedssl.experiment.config.texts import flatten

Metric = Literal["knn", "linear", "semi-1", "semi-10", "divergence", "rounds-to", "epochs-to"]
Direction = Literal["rows", "columns"]
Model = TypeVar("Model", bound=BaseModel)
NO_CELL = "-"  # the paper has no such run
NOT_PRINTED = ""
NOT_REACHED = "not reached"
CLOSED = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True)
class Printed:
    """A number of the paper, as a number and as it is printed."""

    text: str
    mean: float | None  # None: not reached
    sd: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Printed | None":
        if text == NOT_PRINTED:
            return None
        if text == NOT_REACHED:
            return cls(text, None)
        mean, _, sd = text.partition(" ± ")
        return cls(text, float(mean), float(sd) if sd else None)


class Column(BaseModel):
    model_config = CLOSED
    label: str
    preset: str = ""
    metric: Metric | None = None
    settings: Raw = Field(default_factory=dict)
    x: float | None = None  # where it stands on the axis of a sweep

    @property
    def title(self) -> str:
        return self.label


class Row(BaseModel):
    model_config = CLOSED
    label: str
    algorithm: str
    group: str = ""
    preset: str = ""
    settings: Raw = Field(default_factory=dict)
    sweep_keys: list[str] | None = None  # the settings that the sweep's values go to; None: the sweep's own
    target: float | None = None  # an accuracy in %, for rounds-to and epochs-to
    paper: list[str] = Field(default_factory=list)  # as printed, one for each column; left out: nothing is printed

    @property
    def title(self) -> str:
        return f"{self.label}, {self.group}" if self.group else self.label


class Sweep(BaseModel):
    """Columns that differ in one number."""

    model_config = CLOSED
    name: str
    keys: list[str]
    values: list[float | int]

    def columns(self) -> list[Column]:
        return [Column(label=f"{self.name} = {value}", x=value) for value in self.values]


class Study(BaseModel):
    """One table or figure of the paper."""

    model_config = CLOSED
    name: str
    position: int
    number: str  # "Table 3"
    labels: list[str]  # LaTeX labels in the paper's source
    title: str
    shows: str
    metric: Metric
    preset: str = ""
    seeds: int = 3
    figure: Literal["", "curves", "sweep", "heat-map"] = ""
    measures: list[str] = ["knn"]  # what curves show
    order: list[Direction] = ["rows"]  # which neighbours' order means something
    not_printed: str = ""
    read_as: str = ""  # where the paper leaves a choice, or says two things
    settings: Raw = Field(default_factory=dict)
    columns: list[Column] = Field(default_factory=list)
    rows: list[Row]
    groups: dict[str, Raw] = Field(default_factory=dict)
    sweep: Sweep | None = None

    @model_validator(mode="before")
    @classmethod
    def _sweep_makes_columns(cls, raw: Any) -> Any:
        if raw.get("sweep") and not raw.get("columns"):
            raw = {**raw, "columns": Sweep.model_validate(raw["sweep"]).columns()}
        return raw

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for row in self.rows:
            if row.paper and len(row.paper) != len(self.columns):
                raise ValueError(
                    f"row {row.title!r} has {len(row.paper)} printed cells for {len(self.columns)} columns"
                )
            if row.group and row.group not in self.groups:
                raise ValueError(f"row {row.title!r}: there is no group {row.group!r}")
        return self

    def cells(self) -> Iterator["Cell"]:
        """Row by row; those that the paper has not are left out."""
        for row in self.rows:
            for number, column in enumerate(self.columns):
                if not row.paper or row.paper[number] != NO_CELL:
                    yield Cell(self, row, column)

    def cell(self, row: Row, column: Column) -> "Cell | None":
        return next((cell for cell in self.cells() if cell.row is row and cell.column is column), None)


@dataclass(frozen=True)
class Cell:
    """One number of a table or one point of a figure: the settings that make it, and what the paper has there."""

    study: Study
    row: Row
    column: Column

    @property
    def metric(self) -> Metric:
        return self.column.metric or self.study.metric

    @property
    def protocol(self) -> str | None:
        """The evaluation that the number needs after the run; None: the run's own records are enough."""
        return self.metric if self.metric in PROTOCOLS and not in_run(self.metric) else None

    @property
    def preset(self) -> str:
        return f"{self.row.preset or self.column.preset or self.study.preset}+{self.row.algorithm}"

    @property
    def printed(self) -> Printed | None:
        if not self.row.paper:
            return None
        return Printed.parse(self.row.paper[self.study.columns.index(self.column)])

    @property
    def settings(self) -> Raw:
        """What the experiment sets itself, by dotted names, as in the paper."""
        layers = (self.study.settings, self.column.settings, self.study.groups.get(self.row.group, {}))
        own: Raw = {}
        for layer in (*layers, self.row.settings):
            own |= flatten(layer)
        if self.study.sweep and self.column.x is not None:
            keys = self.study.sweep.keys if self.row.sweep_keys is None else self.row.sweep_keys
            value = self.study.sweep.values[self.study.columns.index(self.column)]
            own |= dict.fromkeys(keys, value)
        return own

    @property
    def title(self) -> str:
        return f"{self.study.name}: {self.row.title}, {self.column.label}"


def load_all(folder: str, model: type[Model], what: str) -> list[Model]:
    """Every TOML file in a folder of this package, its name being the name of what it describes."""
    files = resources.files(__name__.rpartition(".")[0]) / folder
    paths = [path for path in files.iterdir() if path.name.endswith(".toml")]
    return [load_one(path.name, path.read_text(encoding="utf-8"), model, what) for path in paths]


def load_one(file: str, text: str, model: type[Model], what: str) -> Model:
    try:
        return model.model_validate({"name": file.removesuffix(".toml"), **tomllib.loads(text)})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise FedsslError(f"{file}: not {what}: {error}") from None


@cache
def load_studies() -> dict[str, Study]:
    """Every experiment by its name, in the order of the paper."""
    studies = load_all("experiments", Study, "an experiment of the paper")
    return {study.name: study for study in sorted(studies, key=lambda study: study.position)}


def find_studies(names: list[str]) -> list[Study]:
    """The experiments of these names; `all` names every one."""
    known = load_studies()
    for name in names:
        if name not in known and name != "all":
            raise unknown("there is no experiment", name, known, "fedssl paper")
    return list(known.values()) if "all" in names else [known[name] for name in dict.fromkeys(names)]
