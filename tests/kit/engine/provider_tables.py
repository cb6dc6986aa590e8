"""A simulated provider's table of properties against the SDK that is installed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch.rehearsal.pulumi.schema import Schema


def judge(schema: Schema, resource: Any) -> None:
    """A type's inputs, outputs and required ones are those of its class in the SDK."""
    # The text from the class on: `inspect.getsource` parses it all, which is slow.
    text = Path(inspect.getfile(resource)).read_text()
    source = text[text.index(f"\nclass {resource.__name__}(") :]
    assert schema.token in source
    body = source[source.index("def _internal_init") : source.index("def get(")]
    found = re.findall(r'__props__\.__dict__\["(\w+)"\] = (\w+)', body)
    getters = re.findall(
        r'@pulumi.getter(?:\(name="(\w+)"\))?\s+(?:@_utilities[^\n]*\n\s+)?def (\w+)', source
    )
    names = {python: wire or python for wire, python in getters}
    assert schema.inputs == {names[name] for name, value in found if value != "None"}
    assert schema.outputs == {names[name] for name, value in found if value == "None"}
    assert schema.required == {
        names[name] for name in re.findall(r"Missing required property '(\w+)'", source)
    }


def judge_words(schemas: Mapping[str, Schema]) -> None:
    """What is said of properties is said of ones that are there."""
    for schema in schemas.values():
        said = {name.split(".")[0] for name in (*schema.new, *schema.computed, *schema.links, *schema.strict)}
        said |= schema.sets | schema.json | set(schema.defaults)
        said |= {schema.name} if schema.name else set()
        assert said <= schema.inputs, schema.token
        assert schema.stale <= schema.inputs | schema.outputs
