"""`orch.yml`: one project, its state and its backends."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from orch.spec.values import Problem, Problems, shown

from .base import Section
from .fields import Name, Text, choice


class Defaults(Section):
    """What documents of the project need not repeat."""

    noun: ClassVar[str] = "`defaults`"

    image: Text | None = Field(
        default=None, description="Container image of jobs whose task and fleet name none."
    )


class LocalBackend(Section):
    """Containers on this machine as nodes."""

    noun: ClassVar[str] = "the backend `local`"

    type: Annotated[Literal["local"], choice("local")] = Field(default="local", description="`local`.")
    node_image: Text | None = Field(default=None, description="Image of the node containers.")


def _backends(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise Problem(
            "ORCH112", "a list of backends is expected", hint="begin a line below it with `- type: local`"
        )
    problems: list[Problem] = []
    for index, item in enumerate(cast("list[object]", value)):
        kind = cast("dict[str, object]", item).get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind is None:
            problems.append(
                Problem("ORCH113", "a backend needs a `type`", hint="write `type: local`", at=(index,))
            )
        if isinstance(kind, str) and kind != "local":
            summary = f"this version has a driver for `local` only, not for {shown(kind)}"
            problems.append(Problem("ORCH201", summary, at=(index, "type")))
    if problems:
        raise Problems(tuple(problems))
    return value  # pyright: ignore[reportUnknownVariableType]


class Project(Section):
    """The file beside the documents: where state lies, and what they have in common."""

    noun: ClassVar[str] = "`orch.yml`"

    project: Name | None = Field(default=None, description="Name of the project; the folder's if not given.")
    state: Text | None = Field(
        default=None, description="URL of the Pulumi state; files under `.orch/` if not given."
    )
    secrets_provider: Text | None = Field(default=None, description="Pulumi's secrets provider.")
    ledger: Text | None = Field(default=None, description="SQLAlchemy URL of the ledger of runs.")
    defaults: Defaults = Field(default=Defaults(), description="Defaults of documents.")
    backends: Annotated[tuple[LocalBackend, ...], BeforeValidator(_backends)] = Field(
        default=(), description="Where fleets may be created."
    )
