"""Scales: what an experiment of the paper is run with here, why each setting is changed, and what is left out."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, Field

from fedssl.core.registry import unknown
from fedssl.experiment.config.layers import load_config, load_raw
from fedssl.experiment.config.schema import Config, Raw
from fedssl.experiment.config.texts import flatten
from fedssl.paper.catalogue import CLOSED, Cell, load_all


class Change(BaseModel):
    """A setting that the scale changes, unless the experiment sets it itself."""

    model_config = CLOSED
    key: str
    value: Any
    reason: str
    when: Raw = Field(default_factory=dict)  # only where the paper's settings have one of these values

    def applies(self, unscaled: Raw) -> bool:
        return all(unscaled.get(key) in values for key, values in flatten(self.when).items())


class Varied(BaseModel):
    """How the values that an experiment sets itself are carried over; what is not named stays as it is."""

    model_config = CLOSED
    key: str
    times: float | None = None
    values: dict[str, Any] = Field(default_factory=dict)
    left_out: dict[str, str] = Field(default_factory=dict)  # value -> why it has no meaning at this scale
    experiments: list[str] = Field(default_factory=list)  # left out: all
    reason: str = ""

    def carried_over(self, value: Any) -> Any:
        if str(value) in self.values:
            return self.values[str(value)]
        if self.times is None:
            return value
        return max(round(value * self.times), 1) if isinstance(value, int) else value * self.times


@dataclass(frozen=True)
class LeftOut:
    """A cell that is not run, and why."""

    reason: str


class Scale(BaseModel):
    """Everything that is not as printed, named."""

    model_config = CLOSED
    name: str
    title: str
    extends: str = ""  # another scale, whose changes are taken over
    as_printed: list[str] = Field(default_factory=list)  # but for these settings
    changes: list[Change] = Field(default_factory=list)
    varied: list[Varied] = Field(default_factory=list)
    evaluation_epochs: dict[str, int] = Field(default_factory=dict)

    def over(self, base: "Scale") -> "Scale":
        """With what the scale that it extends has, but for the settings that are as printed here."""
        return self.model_copy(
            update={
                "changes": self.changes + [one for one in base.changes if one.key not in self.as_printed],
                "varied": self.varied + [one for one in base.varied if one.key not in self.as_printed],
                "evaluation_epochs": base.evaluation_epochs | self.evaluation_epochs,
            }
        )

    def configure(self, cell: Cell) -> Config | LeftOut:
        """The config of a cell at this scale with seed 0, or why it has none."""
        own: Raw = {}
        for key, value in cell.settings.items():
            rule = self._rule(key, cell)
            if rule and str(value) in rule.left_out:
                return LeftOut(rule.left_out[str(value)])
            own[key] = rule.carried_over(value) if rule else value
        return load_config(cell.preset, {**self._changes_for(cell), **own, "seed": 0})

    def _changes_for(self, cell: Cell) -> Raw:
        unscaled = flatten(load_raw(cell.preset, cell.settings))
        return {change.key: change.value for change in self.changes if change.applies(unscaled)}

    def _rule(self, key: str, cell: Cell) -> Varied | None:
        """The first rule for this setting in this experiment: particular ones stand before general ones."""
        fits = (rule for rule in self.varied if rule.key == key)
        return next((rule for rule in fits if not rule.experiments or cell.study.name in rule.experiments), None)

    def target(self, cell: Cell) -> float | None:
        """The accuracy in % that rounds-to and epochs-to wait for."""
        if cell.row.target is None:
            return None
        rule, paper = self._rule("target", cell), cell.row.target
        return float(rule.values.get(f"{paper:g}", paper)) if rule else paper

    def carried_over(self, cell: Cell) -> list[str]:
        """In words, what became of the values that the experiment sets itself; nothing where they stay."""
        lines = []
        for key, value in cell.settings.items():
            rule = self._rule(key, cell)
            if rule and str(value) not in rule.left_out and rule.carried_over(value) != value:
                lines.append(f"{key} {value} → {rule.carried_over(value)} ({rule.reason})")
        if (target := self.target(cell)) != cell.row.target:
            lines.append(f"target {cell.row.target:g} % → {target:g} %")
        return lines


@cache
def load_scales() -> dict[str, Scale]:
    files = {scale.name: scale for scale in sorted(load_all("scales", Scale, "a scale"), key=lambda scale: scale.name)}
    return {name: scale.over(files[scale.extends]) if scale.extends else scale for name, scale in files.items()}


def find_scale(name: str) -> Scale:
    known = load_scales()
    if name not in known:
        raise unknown("--scale: there is no", name, known)
    return known[name]
