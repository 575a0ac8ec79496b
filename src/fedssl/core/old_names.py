"""Documented names from before a move: they import what they are now and warn, for one version."""

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "fedssl.sklearn": "fedssl.encoders.sklearn",
    "fedssl.data.synthetic": "fedssl.data.standard.synthetic",
    "fedssl.engines.flower_app": "fedssl.deployment",
    "fedssl.engines": "fedssl.federation.engines",
}


class OldNames:
    """Finds a moved module, and those below it, before anything would load their files a second time."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        moved = next((old for old in MOVED if f"{name}.".startswith(f"{old}.")), None)
        if moved is None:
            return None
        # No importlib.abc.Loader, whose import takes longer than all of `import fedssl`.
        return ModuleSpec(name, self, origin=MOVED[moved] + name.removeprefix(moved))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the usual empty module, whose place the moved one takes."""

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        old, new = module.__name__, str(module.__spec__.origin)
        sys.modules[old] = importlib.import_module(new)
        warnings.warn(f"{old} is now {new}: the old name will go", DeprecationWarning, stacklevel=2)
