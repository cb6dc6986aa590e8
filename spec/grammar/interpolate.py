"""`${{ namespace.name }}`: which references a text holds, and what becomes of them.

Three moments. When a file is read, `${{ env.X }}` is replaced from the caller's environment
(`fill_environment`). When a job is compiled, `${{ orch.node_rank }}` (or `dstack.node_rank`), `${{ run.args
}}` and `${{ groups[0].nodes[0].IP_ADDRESS }}` are replaced for each node (`render_text`, `render_command`,
`render_args`). When something is launched, `${{ secrets.X }}` is replaced from the project's store
(`fill_secrets`). In text `$$` stands for `$`; in commands only `$${{` is an escape, so that `$$` stays the
shell's process id. A lone `$` is never touched.

Text that waits for secrets (`ReferenceSite.LAUNCH`) has one of two forms. Without `${{` it is final. With
`${{` it is a template: a reference stands for itself, and each `$` of its own is written `$$`. So a text that
only looks like a reference is never taken for one, and text without references is the same in both forms.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from orch.spec.grammar.values import Problem, shown
from orch.spec.suggest import hint_for, listed

# Values known when a job starts, under `orch.` and `dstack.`.
JOB_VALUES = ("node_rank", "job_num", "run_name", "array_task_id")
NAMESPACES = ("env", "orch", "dstack", "run", "secrets", "groups")


class ReferenceSite(Enum):
    """Place of a reference, which decides when it is filled in and how it is escaped."""

    READ = "known when the file is read"
    TEXT = "known when the job starts"
    LAUNCH = "secrets are known when it is launched"
    COMMAND = "known when the job starts, in text for a shell"


@dataclass(frozen=True)
class Reference:
    """One `${{ … }}` and where it stands in its text."""

    namespace: str
    name: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}" if self.name else self.namespace


_TEXT = re.compile(r"\$\$|\$\{\{(.*?)(\}\}|\Z)", re.DOTALL)
_COMMAND = re.compile(r"\$\$(?=\{\{)|\$\{\{(.*?)(\}\}|\Z)", re.DOTALL)


def references(text: str, site: ReferenceSite) -> tuple[Reference, ...]:
    """Return all references of a text except escaped ones. Raises Problem ORCH134 for a missing `}}`."""
    result: list[Reference] = []
    for match in _pattern(site).finditer(text):
        if match.group(1) is None:
            continue
        if not match.group(2):
            raise Problem(
                "ORCH134", "`${{` has no closing `}}`", hint="write `$${{` for these characters themselves"
            )
        namespace, _, name = match.group(1).strip().partition(".")
        result.append(Reference(namespace.strip(), name.strip(), match.start(), match.end()))
    return tuple(result)


def check(reference: Reference, site: ReferenceSite, namespaces: Collection[str]) -> None:
    """Raises a Problem for a reference that nothing will ever fill in. `namespaces` are those that the
    property may use in addition to `env`.
    """
    name, shown_name = reference.namespace, f"`${{{{ {reference} }}}}`"
    family = "groups" if name.startswith("groups[") else "orch" if name == "dstack" else name
    if family not in NAMESPACES:
        hint = (
            hint_for(name, NAMESPACES)
            or "use `env`, `orch` or `run`; write `$${{` for these characters themselves"
        )
        raise Problem("ORCH130", f"{shown(name)} is not a namespace that can be interpolated", hint=hint)
    if family == "secrets" and site is ReferenceSite.COMMAND:
        raise Problem(
            "ORCH131", "a secret in a command is visible in process lists", hint="pass it through `env`"
        )
    if family == "env":
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", reference.name):
            raise Problem("ORCH172", f"{shown(reference.name)} is not the name of a variable")
    elif family == "secrets":
        check_secret_name(reference.name)
    elif family == "groups":
        if not re.fullmatch(r"groups\[[0-9]{1,6}\]", name) or not _NODE_ADDRESS.fullmatch(reference.name):
            hint = "write `${{ groups[0].nodes[0].IP_ADDRESS }}`"
            raise Problem("ORCH172", f"{shown_name} is unknown", hint=hint)
    elif family == "run":
        if reference.name != "args":
            raise Problem("ORCH172", f"{shown_name} is unknown", hint="did you mean 'run.args'?")
    elif reference.name not in JOB_VALUES:
        hint = hint_for(reference.name, JOB_VALUES) or f"known are {listed(JOB_VALUES)}"
        raise Problem("ORCH172", f"{shown_name} is unknown", hint=hint)
    if family != "env" and family not in namespaces:
        where = {
            "orch": "is known only inside a job",
            "run": "belongs in `commands` and launcher arguments",
            "secrets": "belongs in `env`, `registry_auth` or credentials",
            "groups": "belongs in the `commands` and `env` of a group",
        }
        raise Problem("ORCH133", f"{shown_name} {where[family]}, not here")


def group_address(reference: Reference) -> tuple[int, int]:
    """Group and node of `groups[i].nodes[j].IP_ADDRESS`, after `check`."""
    group, node = (int(number) for number in re.findall(r"\[([0-9]+)\]", str(reference)))
    return group, node


_NODE_ADDRESS = re.compile(r"nodes\[[0-9]{1,6}\]\.IP_ADDRESS")


def fill_environment(
    text: str, site: ReferenceSite, environ: Mapping[str, str]
) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """The text with `${{ env.X }}` replaced, the variables that were filled in with their values, and those
    that are not set (theirs stay as they are).

    A value of the environment is never interpolated again: a reference or an escape in it is escaped for
    `render_*`. Text that no job renders (`ReferenceSite.READ`) is finished here.
    """
    filled: dict[str, str] = {}
    unset: list[str] = []

    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "$" if site is ReferenceSite.READ else match.group()
        namespace, _, name = match.group(1).strip().partition(".")
        if namespace.strip() != "env":
            return match.group()
        value = environ.get(name.strip())
        if value is None:
            unset.append(name.strip())
            return match.group()
        filled[name.strip()] = value
        if site is ReferenceSite.READ:
            return value
        return value.replace("${{", "$${{") if site is ReferenceSite.COMMAND else value.replace("$", "$$")

    result = _pattern(site).sub(fill, text)
    if site is ReferenceSite.LAUNCH:
        result = _shortest(result)
    return result, filled, tuple(dict.fromkeys(unset))


def render_text(text: str, values: Mapping[str, str], run_args: Sequence[str] = ()) -> str:
    """The final text of `env`, `volumes`, `working_dir` for one job.

    `values` maps `JOB_VALUES` to text, and whole references to the addresses of a task's groups.
    """
    return _TEXT.sub(_filler(values, shlex.join(run_args), "$"), text)


def render_command(text: str, values: Mapping[str, str], run_args: Sequence[str] = ()) -> str:
    """The final text of one of `commands`; `${{ run.args }}` becomes shell-quoted words."""
    return _COMMAND.sub(_filler(values, shlex.join(run_args), "$"), text)


def render_args(
    args: Sequence[str], values: Mapping[str, str], run_args: Sequence[str] = ()
) -> tuple[str, ...]:
    """The final arguments of a launcher; an argument that is just `${{ run.args }}` becomes as many as
    there are.
    """
    rendered: list[str] = []
    for arg in args:
        if re.fullmatch(r"\$\{\{\s*run\.args\s*\}\}", arg):
            rendered += run_args
        else:
            rendered.append(render_text(arg, values, run_args))
    return tuple(rendered)


def render_for_launch(text: str, values: Mapping[str, str], run_args: Sequence[str] = ()) -> str:
    """The text of `env` for one job, ready for `fill_secrets`."""
    known = _filler(values, shlex.join(run_args), "$")

    def fill(match: re.Match[str]) -> str:
        filled = known(match)
        return match.group() if filled == match.group() else filled.replace("$", "$$")

    return _shortest(_TEXT.sub(fill, text))


def literal(value: str) -> str:
    """A value as text for `fill_secrets`, which gives the value back."""
    return value.replace("$", "$$") if "${{" in value else value


def fill_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """The final text; references to names that `secrets` does not have stay as they are."""
    if "${{" not in text:
        return text

    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "$"
        namespace, _, name = match.group(1).strip().partition(".")
        return secrets.get(name.strip(), match.group()) if namespace.strip() == "secrets" else match.group()

    return _TEXT.sub(fill, text)


def secret_names(*texts: str) -> frozenset[str]:
    """The secrets that texts for `fill_secrets` refer to."""
    names: set[str] = set()
    for text in texts:
        for match in _TEXT.finditer(text) if "${{" in text else ():
            namespace, _, name = (match.group(1) or "").strip().partition(".")
            if namespace.strip() == "secrets":
                names.add(name.strip())
    return frozenset(names)


def check_secret_name(name: str) -> str:
    """The name. Raises Problem ORCH172 for one that no secret can have; dstack takes the same ones, and those
    that begin with a dash."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,199}", name):
        return name
    if name.startswith("-"):
        summary = f"{shown(name)} begins with a dash: every command would take it for an option"
        raise Problem("ORCH172", summary, hint="begin the name of a secret with a letter, a digit or `_`")
    hint = "write letters, digits, `_` and `-`, 200 at most"
    raise Problem("ORCH172", f"{shown(name)} is not the name of a secret", hint=hint)


def _shortest(template: str) -> str:
    """A template as final text where no `${{` is left in it."""
    final = _TEXT.sub(lambda match: "$" if match.group(1) is None else match.group(), template)
    return template if "${{" in final else final


def split_words(text: str) -> tuple[str, ...]:
    """A command line split as a shell would, each `${{ … }}` kept in one piece."""
    compact = re.sub(r"\$\{\{\s*([^\s{}]+)\s*\}\}", r"${{\1}}", text)
    try:
        return tuple(shlex.split(compact))
    except ValueError as error:
        what = "a quote is not closed" if "quotation" in str(error) else "a backslash ends the text"
        raise Problem("ORCH135", what, hint="write the arguments as a list to avoid quoting") from None


def _pattern(site: ReferenceSite) -> re.Pattern[str]:
    return _COMMAND if site is ReferenceSite.COMMAND else _TEXT


def _filler(values: Mapping[str, str], run_args: str, escaped: str) -> Callable[[re.Match[str]], str]:
    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return escaped
        namespace, _, name = (part.strip() for part in match.group(1).partition("."))
        if namespace in ("orch", "dstack") and name in values:
            return values[name]
        if namespace.startswith("groups[") and _NODE_ADDRESS.fullmatch(name):
            group, node = group_address(Reference(namespace, name, *match.span()))
            return values.get(f"groups[{group}].nodes[{node}].IP_ADDRESS", match.group())
        return run_args if (namespace, name) == ("run", "args") else match.group()

    return fill
