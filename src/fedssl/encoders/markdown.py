"""Texts for people beside what is written to a folder, from the templates in this package."""

from typing import Any


def markdown(template: str, **values: Any) -> str:
    """A template of this name, filled in; it is no HTML: nothing is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fedssl.encoders", "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(f"{template}.md").render(values)
