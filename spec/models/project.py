"""`orch.yml`: one project, its state, its backends, and what its documents have in common."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import Annotated, ClassVar, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, SkipValidation

from orch.spec.grammar.characters import check_characters, check_image, check_line, check_path
from orch.spec.grammar.values import Problem, Problems, shown
from orch.spec.models.backends import AnyBackend, settings_model
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, describe, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Misread, Path, Reaches, Reads, read_as
from orch.spec.models.fields.types import (
    Flag,
    Image,
    Line,
    Name,
    Tags,
    Text,
    choice,
    duration,
    names_of,
    rows,
    text,
)
from orch.spec.models.fleet import Fleet
from orch.spec.models.run import Terms
from orch.spec.models.selection import check_backend
from orch.spec.models.task import Task

LEVELS = ("mandatory", "advisory", "disabled")
SAVED_PLAN_S = 24 * 3600
YEAR_S = 366 * 86_400
_OWN = ("level", "parameters", "exempt")


def _date(value: object) -> date:
    written = text(value, "a date")
    with suppress(ValueError):
        # From Python 3.11 on, other forms of ISO 8601 are read too.
        if (found := date.fromisoformat(written)).isoformat() == written:
            return found
    raise Problem("ORCH112", f"{shown(written)} is no date", hint="write `2027-03-31`")


class Exemption(Section):
    """A violation that somebody answers for, until a date."""

    noun: ClassVar[str] = "an exemption"

    resource: Line | None = Field(
        default=None, description="Name or URN of the resource; `*` stands for any characters."
    )
    fleet: Line | None = Field(default=None, description="Name of the fleet or volume, with `*` too.")
    path: Line | None = Field(
        default=None, description="File of the document, from the project's folder on, with `*` too."
    )
    owner: Text = Field(description="Who answers for it.")
    reason: Line = Field(description="Why it is right.")
    expires: Annotated[
        date, Reads(_date, json_schema.pattern("date", r"\d{4}-\d{2}-\d{2}"), write=date.isoformat)
    ] = Field(description="The last day on which it counts, as `2027-03-31`, in UTC.")

    @classmethod
    def form(cls) -> str:
        return "write `{resource: NAME, owner: NAME, reason: TEXT, expires: 2027-03-31}`"


def _parameters(value: object) -> object:
    """Parameters as they are written: which ones there are, and of what kind, knows the policy."""
    _check_all(value, ())
    return value


def _check_all(value: object, at: Path) -> None:
    if isinstance(value, str):
        try:
            check_characters(value)
        except Problem as problem:
            problem.at = at
            raise
    elif isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            _check_all(item, (*at, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[object]", value)):
            _check_all(item, (*at, index))


class Policy(Section):
    """A policy's level, its parameters, and what is exempt from it."""

    noun: ClassVar[str] = "a policy"
    short: ClassVar[tuple[Form, ...]] = (json_schema.words(*LEVELS),)

    level: Annotated[Literal["mandatory", "advisory", "disabled"] | None, choice(*LEVELS)] = Field(
        default=None,
        description="What a violation does: stops, is told, or nothing; the policy's own if not given.",
    )
    parameters: Annotated[dict[str, object], Reads(_parameters, json_schema.SETTINGS)] = Field(
        default={}, description="The policy's own."
    )
    exempt: Annotated[tuple[Exemption, ...], rows("exemptions")] = Field(
        default=(), description="Violations that do not count."
    )

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            return {"level": data}
        if isinstance(data, dict):
            mapping = cast("dict[str, object]", data)
            rest = {key: value for key, value in mapping.items() if key not in _OWN}
            nested = mapping.get("parameters")
            if nested is not None and not isinstance(nested, dict):
                raise Problem("ORCH112", f"`parameters` cannot be {describe(nested)}", at=("parameters",))
            parameters = {**cast("dict[str, object]", nested or {}), **rest}
            own = {key: mapping[key] for key in ("level", "exempt") if mapping.get(key) is not None}
            return {**own, **({"parameters": parameters} if parameters else {})}
        return data

    @classmethod
    def form(cls) -> str:
        return "write `mandatory`, `advisory` or `disabled`"


def _policies(value: object) -> object:
    if not isinstance(value, dict):
        raise Problem(
            "ORCH112",
            f"`policies` cannot be {describe(value)}",
            hint="write `NAME: mandatory` lines below it",
        )
    policies: dict[str, Section] = {}
    errors: list[tuple[Path, type[Section], object]] = []
    for name, item in cast("dict[str, object]", value).items():
        try:
            policies[name] = read_as(Policy, {} if item is None else item, (name,))
        except Misread as error:
            errors += error.parts
    if errors:
        raise Misread(errors)  # type: ignore[arg-type]
    return policies


def _images(value: object) -> object:
    """Image -> image, each checked as `image` of a task is."""
    if not isinstance(value, dict):
        hint = "write `IMAGE: OTHER IMAGE` lines below it"
        raise Problem("ORCH112", f"`images` cannot be {describe(value)}", hint=hint)
    images: dict[str, str] = {}
    for key, item in cast("dict[str, object]", value).items():
        try:
            images[check_image(text(key))] = check_image(text(item))
        except Problem as problem:
            problem.at = (key, *problem.at)
            raise
    return images


Images = Annotated[dict[str, str], Reads(_images, json_schema.mapping(json_schema.TEXT, "{image: image}"))]
Policies = Annotated[
    dict[str, Policy],
    Reads(
        _policies,
        json_schema.mapping(
            json_schema.either("level or settings", json_schema.words(*LEVELS), json_schema.SETTINGS),
            "policies",
        ),
    ),
]


def _ledger(value: object) -> str:
    """The URL of a ledger; it may hold a password, so no message quotes it."""
    url = check_line(text(value))
    scheme, colon, rest = url.partition("://")
    if "${{" in url:
        return url
    hint = "write `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`"
    if scheme == "postgres":
        raise Problem("ORCH112", "the scheme of a ledger on PostgreSQL is `postgresql`", hint=hint)
    if not colon or scheme not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise Problem("ORCH112", "a ledger is a URL of SQLite or PostgreSQL", hint=hint)
    if scheme == "sqlite" and (not rest.startswith("/") or not rest[1:] or ":memory:" in rest):
        raise Problem("ORCH112", "the ledger's URL names no file", hint="write `sqlite:///PATH`")
    try:
        parts = urlsplit(url)
        whole = scheme == "sqlite" or bool(parts.path.strip("/")) or bool(parts.query)
        _ = parts.port
    except ValueError:
        raise Problem("ORCH112", "the ledger's URL cannot be read", hint=hint) from None
    if not whole:
        raise Problem("ORCH112", "the ledger's URL names no database", hint=hint)
    return url


class Defaults(Section):
    """What documents of the project need not repeat."""

    noun: ClassVar[str] = "`defaults`"

    image: Image | None = Field(
        default=None, description="Container image of jobs whose task and fleet name none."
    )
    fleet: Fleet | None = Field(
        default=None,
        description="Any property of a fleet but its name, for fleets that do not write it. Existing hosts "
        "take none of nodes that are made, nodes on this machine none of clouds.",
    )
    task: Task | None = Field(
        default=None,
        description="Any property of a task but its name, for tasks that do not write it, nor their profile. "
        "A task with a launcher takes no other one.",
    )


class Profile(Terms):
    """Properties that a run takes over where its task does not write them."""

    noun: ClassVar[str] = "a profile"

    name: Text = Field(description="What `--profile` names.")
    default: Flag = Field(default=False, description="Taken when none is named.")


def _backends(value: object) -> object:
    """Each entry by its `type`. Names without a driver are left out: they get a warning (ORCH190)."""
    if not isinstance(value, (list, tuple)):
        raise Problem(
            "ORCH112", "a list of backends is expected", hint="begin a line below it with `- type: local`"
        )
    backends: list[Section] = []
    errors: list[tuple[Path, type[Section], object]] = []
    problems: list[Problem] = []
    for index, item in enumerate(cast("list[object]", value)):
        if isinstance(item, Section):
            backends.append(item)
            continue
        try:
            kind = _kind(item)
            model = settings_model(kind)
            if model is not None:
                backends.append(read_as(model, item, (index,)))
        except Misread as error:
            errors += error.parts
        except Problem as problem:
            problem.at = (index, *problem.at)
            problems.append(problem)
    if errors or problems:
        raise Misread([*errors, *([((), BackendSettings, Problems(tuple(problems)))] if problems else [])])  # type: ignore[list-item]
    return tuple(backends)


def _kind(item: object) -> str:
    if not isinstance(item, dict):
        raise Problem("ORCH112", f"a backend cannot be {describe(item)}", hint="write `- type: local`")
    kind = cast("dict[str, object]", item).get("type")
    if kind is None:
        raise Problem("ORCH113", "a backend needs a `type`", hint="write `type: local`")
    try:
        return check_backend(text(kind))
    except Problem as problem:
        problem.at = ("type",)
        raise


BackendList = Annotated[
    tuple[SkipValidation[AnyBackend], ...],
    Reads(_backends, write=lambda all_: [plain(each) for each in all_]),
]


class NamedProject(Section):
    """An entry of `projects`, as a server's configuration lists them."""

    noun: ClassVar[str] = "a project"

    name: Text = Field(description="Its name.")
    backends: BackendList = Field(default=(), description="Its backends.")


class ProjectSettings(Section):
    """The file beside the documents: where state lies, and what they have in common."""

    noun: ClassVar[str] = "`orch.yml`"

    project: Name | None = Field(default=None, description="Name of the project; the folder's if not given.")
    state: Annotated[Text | None, Reaches()] = Field(
        default=None, description="URL of the Pulumi state; files under `.orch/` if not given."
    )
    secrets_provider: Annotated[Text | None, Reaches()] = Field(
        default=None, description="Pulumi's secrets provider."
    )
    ledger: Annotated[str | None, Reads(_ledger, json_schema.TEXT), Reaches()] = Field(
        default=None,
        description="URL of the ledger of runs: `sqlite:///PATH`, from the folder of `orch.yml`, or "
        "`postgresql://…`.",
    )
    policies: Policies = Field(
        default={}, description="Levels, parameters and exemptions of policies: `NAME: level` lines."
    )
    policy_packs: Annotated[tuple[str, ...], names_of("folders", check_path), Reaches()] = Field(
        default=(),
        description="Folders with policy packs of your own, which the engine runs beside these policies.",
    )
    defaults: Defaults = Field(default=Defaults(), description="Defaults of documents.")
    profiles: Annotated[tuple[Profile, ...], rows("profiles")] = Field(
        default=(), description="Chosen with `--profile`."
    )
    tags: Tags = Field(default={}, description="Tags of everything made.")
    images: Images = Field(
        default={},
        description="Images that are used in place of others, for nodes that cannot reach a registry: "
        "`{nvcr.io/nvidia/pytorch:24.01-py3: my.registry/pytorch:24.01, orch/python3.12: orch/python3.13}`.",
    )
    nodes_for_runs: Annotated[Literal["ask", "always", "never"], choice("ask", "always", "never")] = Field(
        default="ask",
        description="Whether a run that finds too few nodes has some made: after a question or `--yes`, "
        "without a question, or only with `--yes`.",
    )
    saved_plan_duration_s: Annotated[int, duration(SAVED_PLAN_S, never=False, low=1, high=YEAR_S)] = Field(
        default=SAVED_PLAN_S,
        validation_alias="saved_plan_duration",
        description="How long a saved plan of `orch preview --out plan.json` can be applied, where "
        "`--expires` does not say.",
    )
    all_backends: BackendList = Field(
        default=(), validation_alias="backends", description="Where fleets may be created."
    )
    projects: Annotated[tuple[NamedProject, ...], rows("projects")] = Field(
        default=(),
        description="Projects with their backends, as dstack's server lists them, instead of "
        "`backends`; `project` names the one that this is, where there are several.",
    )

    @property
    def chosen(self) -> NamedProject | None:
        """Project of `projects` that `project` names, or the only one; None if there is no such project."""
        if self.project is None:
            return self.projects[0] if len(self.projects) == 1 else None
        return next((each for each in self.projects if each.name == self.project), None)

    @property
    def configured(self) -> tuple[BackendSettings, ...]:
        """The backends of this project, however they are written."""
        return self.all_backends or (self.chosen.backends if self.chosen is not None else ())
