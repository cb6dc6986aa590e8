"""Options that several verbs have, records of options, and which options do not go together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Generic, TypeVar, cast, get_type_hints

import typer

from orch.cli import completion

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def with_records(verb: F) -> F:
    """Return a verb whose parameters that are dataclasses are given as options, one for each field.

    Options keep the order of parameters and fields, which is that of `--help`.
    """
    keyword, absent = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters: list[inspect.Parameter] = []
    records: dict[str, type[Any]] = {}
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=keyword))
            continue
        records[parameter.name] = record = cast("type[Any]", parameter.annotation)
        hints = get_type_hints(record, include_extras=True)
        for field in fields(record):
            default = absent if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name])
            )

    @wraps(verb)
    def with_options(**options: Any) -> Any:
        for name, record in records.items():
            options[name] = record(**{field.name: options.pop(field.name) for field in fields(record)})
        return verb(**options)

    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    with_options.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return cast(F, with_options)


@dataclass(frozen=True)
class Refusal(Generic[T]):
    """Options that do not go together: the one that the message names, the reason, and when it applies."""

    option: str
    reason: str
    applies: Callable[[T], bool]


def refuse(refusals: Iterable[Refusal[T]], options: T) -> None:
    """Raise BadParameter for the first refusal that applies to the options of a command line."""
    for each in refusals:
        if each.applies(options):
            raise typer.BadParameter(each.reason, param_hint=each.option)


ALSO = "Also as `-f FILE`."

File = Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file, a folder of them, or -. {ALSO}")]
FileOrName = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME",
        help=f"A fleet's file, or its name. {ALSO}",
        autocompletion=completion.files_or_fleets,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Data on stdout, for pipelines.")]
Indices = Annotated[
    list[int] | None,
    typer.Option("--instance", "-i", metavar="INDEX", help="Only this node of the fleet; repeatable."),
]
NewKeys = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-keys",
        help="Trust hosts whose keys nobody has seen yet; a changed key is refused.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Every property that changes, also what only follows."),
]
Force = Annotated[bool, typer.Option("--force", help="Remove nodes also while runs are on them.")]
Forget = Annotated[
    bool,
    typer.Option(
        "--forget",
        help="Forget the resources of a cloud that are all missing at once (ORCH349); nothing is deleted.",
    ),
]
Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="Who changes it, as leases name them; default USER@HOST."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OnFleet = Annotated[
    str | None,
    typer.Option("--fleet", help="The fleet to run on.", autocompletion=completion.fleets),
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="K=V", help="A variable for the job; repeatable."),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", "-P", metavar="NAME", help="The profile of orch.yml to read tasks with."),
]
Port = Annotated[
    list[str] | None,
    typer.Option(
        "--port",
        metavar="[LOCAL:]JOB",
        help="Forward this port of the job, from another one here than the task says; repeatable.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return at once; the run goes on.")]
Untrusted = Annotated[
    bool,
    typer.Option(
        "--untrusted", help="For files of strangers: no environment, no file outside their repository."
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="NAME", help="A variable or path that they may name; it is not read. Repeatable."
    ),
]
REHEARSE = "ORCHCTL_REHEARSE"
"""The variable that is as `--rehearse`: shells of a rehearsed runbook have it, so that each `orch` in them is
rehearsed."""
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        envvar=REHEARSE,
        show_envvar=False,
        help="On a simulated cloud, with local nodes for its instances.",
    ),
]
TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT, by default this machine's port 4318.",
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run's name or id, as `orch ps -a` shows them.",
        autocompletion=completion.runs,
    ),
]
NewRunName = Annotated[str | None, typer.Option("--name", "-n", help="The run's name.")]
Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE...", help="Names of nodes, also folded: gpu[1-4,7].", autocompletion=completion.nodes
    ),
]
OfFleet = Annotated[
    str | None,
    typer.Option("--fleet", help="The fleet the nodes are of.", autocompletion=completion.fleets),
]
OnNodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NODE",
        help="Only these: a name, an index, gpu[1-4]; repeatable.",
        autocompletion=completion.nodes,
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan-only", help="Show the plan, and change nothing.")]
Upgrade = Annotated[bool, typer.Option("--upgrade", help="Look for newer machine images.")]
