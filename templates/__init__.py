"""Text that is filled in and sent elsewhere: shell scripts for nodes and job containers, cloud-configs, and
pages for people. One `*.j2` file each.

Imports nothing of orch. `render` is the only way in, and it quotes every `{{ value }}`: as one shell word in
`*.sh.j2`, as one double-quoted scalar in `*.yml.j2`, as text in `*.html.j2`. What lies in `ci/` is for
pipelines, whose own expressions have braces: values stand in `[[ brackets ]]` there, blocks in `[% %]`. In a
shell template

- `{{ values | words }}` is one word for each of several values,
- `{{ value | comment }}` is the value on one line, for `#` lines, which would end at a newline,
- `{{ text | shell }}` is put in as it stands, and must be `ShellText`: what `argv` and its like have quoted.

A quoted word stands by itself or beside other text (`"$H/runs/"{{ name }}`), never inside quotes of the
template's own. In YAML `{{ text | block(6) }}` keeps the lines of a text, where they survive that.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import stat
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from jinja2.bccache import Bucket


class ShellText(str):
    """Shell text as opposed to a value: quoted already where it holds values, or a constant of ours."""

    __slots__ = ()


class _Ready(str):
    """What a filter has made fit for its place."""

    __slots__ = ()


def render(template: str, /, **values: object) -> str:
    """`template` filled with `values`, each quoted for its kind of file.

    A value that the template needs and does not get is an error, and so is one that is neither text nor a
    number where it is put in. Raises ValueError for a text with a null character, which no shell can hold.
    """
    return environment(_kind(template)).get_template(template).render(**values)


def rule_files() -> dict[str, bytes]:
    """Return the alert rules of Prometheus, by their path."""
    folder = files(__name__) / "prometheus"
    return {
        f"prometheus/{each.name}": each.read_bytes()
        for each in folder.iterdir()
        if each.name.endswith(".yml")
    }


def prepare(templates: Iterable[str]) -> None:
    """Compile templates before they are needed."""
    for template in templates:
        environment(_kind(template)).get_template(template)


def _kind(template: str) -> str:
    return "ci" if template.startswith("ci/") else template.removesuffix(".j2").rpartition(".")[2]


@cache
def environment(kind: str) -> Environment:
    """The environment of Jinja for templates of one kind: `sh`, `yml`, `html` or `ci`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    if kind == "ci":
        pipelines = Environment(
            loader=FunctionLoader(_source),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
            variable_start_string="[[",
            variable_end_string="]]",
            block_start_string="[%",
            block_end_string="%]",
            comment_start_string="[#",
            comment_end_string="#]",
            finalize=lambda value: _finished(value, yaml_scalar),
        )
        pipelines.filters |= {
            "plain": _plain,
            "word": _word,
            "words": _words,
            "literal": _literal,
            "raw": _raw,
        }
        return pipelines
    if kind == "html":
        return Environment(
            loader=FunctionLoader(_source),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=True,
            finalize=_shown,
        )
    quote = {"sh": _shell_word, "yml": yaml_scalar}[kind]
    made = Environment(
        loader=FunctionLoader(_source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_compiled(kind),
        autoescape=False,
        finalize=lambda value: _finished(value, quote),
    )
    made.filters |= (
        {"shell": _shell, "words": _words, "comment": _comment} if kind == "sh" else {"block": _block}
    )
    return made


def _compiled(kind: str) -> BytecodeCache | None:
    """What keeps compiled templates in the user's cache, as Python does its modules: compiling those of a run
    takes as long as a log-in. None where that folder is not this user's alone: what is in it is executed."""
    from jinja2 import FileSystemBytecodeCache
    from platformdirs import user_cache_path

    class Compiled(FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):  # a disk that is full
                super().dump_bytecode(bucket)

    # What is put in is made ready when a template is compiled, by the functions here.
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    folder = user_cache_path("orch") / "templates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return Compiled(str(folder), f"{kind}-{version}-%s") if own else None


FIRST_BOOT = ("cloud-init-", "gcp-", "init-", "claim-over")
"""How the names of templates begin that become user data."""


def _source(name: str) -> str:
    """A template as it is written; scripts of user data without their comments, which are for readers of it.

    A cloud answers with the user data in each instance, and the engine writes that of all nodes to the state
    anew for each resource.
    """
    text = (files(__name__) / name).read_text("utf-8")
    if not (name.startswith(FIRST_BOOT) and name.endswith(".sh.j2")):
        return text
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#") or line.startswith("#!"))


def yaml_scalar(text: str) -> str:
    """`text` as a double-quoted scalar of printable ASCII, which YAML's readers take for exactly `text`."""
    return '"' + "".join(map(_yaml_character, text)) + '"'


def _finished(value: object, quote: Callable[[str], str]) -> object:
    if isinstance(value, _Ready):
        return value
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    from jinja2 import Undefined

    if isinstance(value, Undefined):
        return value  # printing it is what raises, with its name
    raise TypeError(f"a template shows text and numbers, not a {type(value).__name__}")


def _shown(value: object) -> object:
    """A value for a page: text, whose characters that do not print are their numbers, or a number."""
    from jinja2 import Undefined
    from markupsafe import Markup

    if isinstance(value, (int, float, Undefined, Markup)) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a template shows text and numbers, not a {type(value).__name__}")
    return "".join(each if each.isprintable() or each == "\n" else f"<{ord(each):02x}>" for each in value)


def _shell_word(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text with a null character cannot reach a shell")
    return shlex.quote(text)


def _shell(text: object) -> _Ready:
    if not isinstance(text, ShellText):
        raise TypeError("`| shell` takes ShellText only: anything else is quoted")
    return _Ready(text)


def _words(values: Iterable[object]) -> _Ready:
    return _Ready(" ".join(_shell_word(str(value)) for value in values))


def _comment(text: object) -> _Ready:
    return _Ready(" ".join(str(text).replace("\0", " ").split()))


def _plain(text: str) -> _Ready:
    """A name, path or URL that is the same in YAML, in a shell's quotes and in an expression."""
    if not re.fullmatch(r"[A-Za-z0-9_./:@,+=\[\]-]*| \([A-Za-z0-9_./-]+\)", text):
        raise ValueError(f"{text!r} cannot stand in a pipeline as it is")
    return _Ready(text)


def _word(text: str) -> _Ready:
    return _Ready(_shell_word(text))


def _literal(text: str) -> _Ready:
    """A string of GitHub's expressions."""
    return _Ready("'" + _plain(text) + "'")


def _raw(text: str) -> _Ready:
    """Lines that a macro of ours made."""
    return _Ready(text.removesuffix("\n"))


def _block(text: str, indent: int) -> _Ready:
    """A literal block below a key that stands two columns to the left of `indent`."""
    plain = all(one in "\n\t" or " " <= one <= "~" for one in text)
    if not plain or len(text) < 2 or text[-1] != "\n" or text[-2] == "\n":
        return _Ready(yaml_scalar(text))
    return _Ready("|2\n" + textwrap.indent(text, " " * indent, lambda line: line != "\n"))


def _yaml_character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if " " <= one <= "~":
        return one
    code = ord(one)
    if code == 10:
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
