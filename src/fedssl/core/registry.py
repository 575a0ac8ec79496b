"""Registries: what a name in the settings stands for, and the one rule of who may name code.

What a person typed allows the code that it names. What a file or a message says allows nothing by itself: only
fedssl's own entries, and those of packages that a person allowed. Nothing is imported before that is asked.
"""

import difflib
import importlib
import sys
from collections import UserDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from fedssl.core.errors import FedsslError
from fedssl.core.extras import EXTRAS, need

Entry = TypeVar("Entry")
AllowCode = Sequence[str]  # packages ("mynets") whose code may be imported, or an entry by its whole import path


class Typed(list[str]):
    """The permission of settings that a person typed: it grows by all the code that they name, and by no other."""


@dataclass(frozen=True)
class Family:
    """Names of fedssl's own with a prefix, `timm:NAME`: what follows it is data for one function of ours, no code."""

    make: str  # the import path of that function; its first argument is NAME
    code: tuple[str, ...] = ()  # what behind the prefix is an import path all the same, as it always was


class Registry(UserDict[str, Entry]):
    """Names and what they stand for: as a mapping fedssl's own; `find` also knows what others made.

    That is an entry point of an installed package (group "fedssl.methods" …) or an import path
    "package.module:Name". An own entry may be given by its import path too: it is imported when it is asked for.
    """

    def __init__(
        self,
        group: str,
        source: str,
        own: Mapping[str, Entry | str],
        *,
        base: type | None = None,
        families: Mapping[str, Family] | None = None,
    ) -> None:
        super().__init__(own)  # type: ignore[arg-type]
        self.families = families or {}
        self.group, self.source = f"fedssl.{group}", source  # source: the setting or option that gives the name
        self.base = base  # what others' entries must be, or be made from; None: any callable

    def __contains__(self, name: object) -> bool:
        return name in self.data or self._in_family(name)

    def _in_family(self, name: object) -> bool:
        family, separator, rest = str(name).partition(":")
        return bool(separator and rest) and family in self.families and rest not in self.families[family].code

    def __getitem__(self, name: str) -> Entry:
        if self._in_family(name):
            family, _, rest = name.partition(":")
            return partial(_imported(self.families[family].make, self.source), rest)  # type: ignore[return-value]
        entry = self.data[name]
        if isinstance(entry, str):
            entry = self.data[name] = _imported(entry, self.source)
        return entry

    @cached_property
    def installed(self) -> dict[str, str]:
        """The import paths of the entry points of installed packages, by name; none hides an entry of our own."""
        return {one.name: one.value for one in entry_points(group=self.group) if one.name not in self.data}

    def path(self, name: Any, source: str = "") -> str:
        """The import path that a name stands for; "" for fedssl's own."""
        if isinstance(name, str) and name in self:
            return ""
        module, separator, attribute = str(name).partition(":")
        if isinstance(name, str) and name in self.installed:
            return self.installed[name]
        if not separator or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
            known = [*self.data, *self.installed, *(f"{family}:NAME" for family in self.families)]
            raise unknown(f"{source or self.source}: there is no", name, known, more=", or 'package.module:Name'")
        return str(name)

    def check(self, name: Any, allow_code: AllowCode = (), source: str = "") -> str:
        """Refuses a name that would import what was not allowed; gives its import path."""
        path = self.path(name, source)
        if path:
            _check_path(path, allow_code, source or self.source, name)
        return path

    def find(self, name: Any, allow_code: AllowCode = (), source: str = "") -> Entry:
        """What a name stands for, if it is fedssl's own or allowed."""
        source = source or self.source
        path = self.check(name, allow_code, source)
        if not path:
            return self[name]
        entry = _imported(path, source)
        if not (callable(entry) if self.base is None else _is_or_makes(entry, self.base)):
            needed = "function or class" if self.base is None else self.base.__name__
            raise FedsslError(f"{source}: {name!r} is no {needed}")
        if path == name and path not in in_list(allow_code):
            # "mynets:os.system" is within the allowed package by its name only.
            home = getattr(getattr(entry, "func", entry), "__module__", None)  # of a partial, that of its function
            _check_path(f"{home}:{path.partition(':')[2]}", allow_code, source, name)
        return entry  # type: ignore[no-any-return]

    def typed(self, name: Any, source: str = "") -> Entry:
        """What a name stands for that a person typed, which allows it."""
        return self.find(name, Typed(), source)


def in_list(allow_code: AllowCode) -> tuple[str, ...]:
    """One package may be given as a plain text: its letters are no packages."""
    return (allow_code,) if isinstance(allow_code, str) else tuple(allow_code)


def package_of(path: str) -> str:
    """The package that an import path begins with; "" for fedssl's own entries, which have none."""
    return path.partition(":")[0].partition(".")[0]


def _check_path(path: str, allow_code: AllowCode, source: str, name: Any) -> None:
    if isinstance(allow_code, Typed):
        allow_code.append(path)
    allowed, module, package = in_list(allow_code), path.partition(":")[0], package_of(path)
    if path not in allowed and not any(module == one or module.startswith(f"{one}.") for one in allowed):
        raise FedsslError(
            f"{source}: it names code of package {package!r} ({name}): if you trust it, say --allow-code {package} "
            f"(Python: allow_code=[{package!r}])"
        )


def _imported(path: str, source: str) -> Any:
    module, _, attribute = path.partition(":")
    if EXTRAS.get(package_of(path)) == (package_of(path),):  # a library that fedssl can name the command for
        need(package_of(path), f"{source} = {path}")
    if package_of(path) != "fedssl" and str(Path.cwd()) not in sys.path:
        # The command `fedssl`, unlike `python -m`, does not look there. Last: it hides nothing that is installed.
        sys.path.append(str(Path.cwd()))
    try:
        entry: Any = importlib.import_module(module)
        for part in attribute.split("."):
            entry = getattr(entry, part)
    except (ImportError, AttributeError) as error:
        raise FedsslError(f"{source}: cannot import {path!r}: {error}") from error
    return entry


def _is_or_makes(entry: Any, base: type) -> bool:
    return isinstance(entry, base) or (isinstance(entry, type) and issubclass(entry, base))


def unknown(
    there_is_no: str, name: Any, known: Collection[str], lists: str = "", more: str = "", near: int = 1
) -> FedsslError:
    """The error of a name that nobody knows: the nearest, and all of them or the command that lists them."""
    between = "; " if any("," in one for one in known) else ", "
    rest = f": `{lists}` lists them" if lists else f"; known: {between.join(known)}{more}"
    return FedsslError(f"{there_is_no} {name!r}{nearest(str(name), known, near)}{rest}")


def nearest(word: str, known: Collection[str], most: int = 1) -> str:
    matches = difflib.get_close_matches(word, known, n=most, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
