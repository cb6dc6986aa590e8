"""The configuration reference, written from the models: `make docs` runs `python -m orch.spec.reference`.

A property's line comes from its model, the grammar of values and the order of the documents from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast, get_args, get_origin

from orch.spec.codes import CODES
from orch.spec.models import BACKEND_MODELS, KINDS, ProjectSettings
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import reads_of
from orch.spec.rules.unsupported import LAUNCHED, ROWS, acted_on
from orch.spec.schema import default_of, said

INTRODUCTION = """\
# Configuration reference

<!-- Written from the models by `make docs`; edit those. -->

A configuration is one or several YAML documents, each with a `type`, in a file of any name that ends in
`.yml` or `.yaml`. `orch validate` checks them without touching anything. A project and its backends are
described in a file named `orch.yml`.

For editors there is a JSON Schema: `orch schema > .orch.schema.json`, and as the first line of a file
`# yaml-language-server: $schema=.orch.schema.json` (`orch schema project` for `orch.yml`).

- A value is read from its text by the type of its property: `python: 3.10` is version 3.10, `off` a duration.
- A property that is empty, `~` or `null` counts as not written.
- Top-level keys that begin with `x-` are left alone: a place for anchors. Aliases and `<<` merges work.
- An unnamed fleet or volume is named after its file, an unnamed run after its file and four characters.
- What is marked with backends (*AWS, GCP*) is acted on there. Elsewhere, and where *Later* stands, it is read
  and checked by this version, and refused by `up` and `run` (ORCH118).

## Values

| Kind | How it is written |
|---|---|
| name | 2 to 41 lower-case letters, digits and dashes, a letter first |
| size | a number and `MB`, `GB`, `TB` (or `MiB`, `GiB`, `TiB`: the same); without a unit GB |
| range | `a..b`, `a..`, `..b`, a single value, or `{min, max}` |
| duration | seconds, or `90s`, `5m`, `1h30m`, `3d`, `2w`; `off` is never |
| money | US dollars, above zero |
| bool | `true`, `false`, `yes`, `no`, `on`, `off` |
| env | a list of `NAME=value`, or a mapping; a name without a value is taken from your environment |
| tags | a mapping; keys of letters, digits, `-` and `_` |
| cpu | `4`, `4..8`, `arm:4..`: one number is a minimum |
| gpu | tokens joined with `:` in any order: maker, models (`A100,H100`), memory of each (`80GB`), count |

## References

`${{ env.NAME }}` is filled in from your environment when a file is read, in every text. Known only later are:

| Reference | Where it may stand |
|---|---|
| `secrets.NAME` | `env`, `registry_auth`, `options` of mounts, credentials of backends |
| `orch.node_rank`, `orch.job_num`, `orch.run_name`, `orch.array_task_id`; also `dstack.…` | `env`, \
`commands`, `volumes`, `working_dir`, arguments of launchers |
| `run.args`, the words after `--` on the command line | `commands`, arguments of launchers |
| `groups[i].nodes[j].IP_ADDRESS` | `commands` and `env` of groups |

`$$` stands for `$` in text with references; in `commands` only `$${{` does, so that `$$` stays the shell's.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Documents\n"]
    blocks: list[type[Section]] = []
    for kind, model in KINDS.items():
        later = "" if kind in LAUNCHED else " *Later.*"
        parts.append(f"### `type: {kind}`\n\n{said(model)}{later}\n\n{_table(model, kind)}")
        _collect(model, blocks)
    parts.append(f"### `orch.yml`\n\n{said(ProjectSettings)}\n\n{_table(ProjectSettings, 'project')}")
    _collect(ProjectSettings, blocks)
    # Those that nodes are created on come first.
    backends = sorted(dict.fromkeys(BACKEND_MODELS.values()), key=lambda model: not model.provisioned)
    parts.append("## Blocks\n")
    parts += [_section(block) for block in blocks if block not in backends]
    parts.append("## Backends\n\nEntries of `backends` in `orch.yml`, by their `type`.\n")
    parts += [f"### {_noun(model)}\n\n{said(model)}\n\n{_table(model, '')}" for model in backends]
    parts.append(_codes())
    return "\n".join(parts)


def _section(block: type[Section]) -> str:
    short = " or ".join(f"*{form['title']}*" for form in block.short if "title" in form)
    note = f"\n\nShort form: {short}." if short else ""
    table = f"\n\n{_table(block, '')}" if block.properties() else "\n"
    return f"### {_noun(block)}\n\n{said(block)}{note}{table}"


def _noun(block: type[Section]) -> str:
    """A heading that no other block has."""
    kind = next((kind for kind, model in KINDS.items() if model is block), None)
    if kind:
        return f"`type: {kind}`"
    noun = block.noun.removeprefix("a ").removeprefix("an ")
    return f"{noun} ({block.__name__})"


def _anchor(block: type[Section]) -> str:
    heading = _noun(block).lower().replace(" ", "-")
    return "#" + "".join(char for char in heading if char.isalnum() or char in "-_")


def _table(model: type[Section], kind: str) -> str:
    lines = ["| Property | Type | Default | Meaning |", "|---|---|---|---|"]
    for key, name in model.properties().items():
        others = [spelling for spelling, own in model.spellings.items() if own == name]
        also = f" (also {', '.join(f'`{other}`' for other in others)})" if others else ""
        about = model.model_fields[name].description or ""
        about += _acted_on(kind, key)
        cells = (f"`{key}`{also}", _type(model, name), _default(model, name), about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _acted_on(kind: str, key: str) -> str:
    """Return the backends on which a property has an effect, as Markdown; empty if on all of them."""
    if key not in ROWS.get(kind, {}):
        return ""
    where = [name.upper() for name in BACKEND_MODELS if kind == "fleet" and key in acted_on(name)]
    return f" *{', '.join(where)}.*" if where else " *Later.*"


def _type(model: type[Section], name: str) -> str:
    info = model.model_fields[name]
    reads = reads_of(info)
    title = str(reads.form.get("title", "")) if reads and reads.form else ""
    if title and reads and not reads.beside:
        return _choice(reads.form or {}) or title
    links = [f"[{_words(block)}]({_anchor(block)})" for block in _blocks_in(info.annotation)]
    if len(links) > 3:
        return "list of [backends](#backends)"
    linked = " or ".join(links)
    if _is_list(info.annotation) and not title:
        linked = f"list of {linked}"
    return ", ".join(part for part in (title, linked) if part) or _plain(info.annotation)


def _choice(form: Form) -> str:
    """The words of a choice."""
    branches = cast("list[Form]", form.get("anyOf", []))
    words = cast("list[str]", branches[0].get("enum", [])) if branches else []
    return ", ".join(f"`{word}`" for word in words)


def _words(block: type[Section]) -> str:
    return block.noun.replace("`", "").removeprefix("a ").removeprefix("an ")


def _plain(annotation: Any) -> str:
    return ", ".join(f"`{word}`" for word in get_args(annotation)) or "settings"


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(get_origin(part) is tuple for part in get_args(annotation))


def _default(model: type[Section], name: str) -> str:
    info = model.model_fields[name]
    if info.is_required() and not info.json_schema_extra:
        return "*required*"
    default = default_of(model, name)
    if default is None:
        return "-"
    if isinstance(default, (dict, list)):
        return f"`{_flow(cast(object, default))}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{key}: {_flow(item)}" for key, item in cast("dict[str, object]", value).items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in cast("list[object]", value)) + "]"
    return str(value)


def _blocks_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield from annotation.variants()
    elif get_origin(annotation) is not None:
        for part in get_args(annotation):
            yield from _blocks_in(part)


def _collect(model: type[Section], blocks: list[type[Section]]) -> None:
    """Blocks in the order in which a reader meets them."""
    for name in model.properties().values():
        reads = reads_of(model.model_fields[name])
        if reads and reads.form and not reads.beside:
            continue
        for block in _blocks_in(model.model_fields[name].annotation):
            if block not in blocks and block not in KINDS.values():
                blocks.append(block)
                _collect(block, blocks)


def _codes() -> str:
    lines = ["## Codes\n", "| Code | What is wrong |", "|---|---|"]
    return "\n".join([*lines, *(f"| {code} | {what} |" for code, what in CODES.items())]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
