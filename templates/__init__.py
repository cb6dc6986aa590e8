"""Text that is filled in and sent elsewhere: shell scripts for nodes and job containers. One `*.j2` file
each.

Imports nothing of orch. `render` is the only way in; in a template `{{ value | q }}` is shell-quoted.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, /, **values: object) -> str:
    """`template` filled with `values`; a value the template needs and does not get is an error."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda name: (files(__name__) / name).read_text("utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["q"] = lambda value: shlex.quote(str(value))
    return environment
