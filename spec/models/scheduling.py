"""When and under which conditions a run goes on: signals, checkpoints, schedules, dependencies, arrays."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar import schedule
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section, plain
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Misread, Path, Reads, read_as
from orch.spec.models.fields.types import Flag, Text, absolute, choice, duration, names_of, text, whole


class Signal(Section):
    """Sent ahead of `max_duration`, and ahead of the kill where `stop_duration` leaves the time.

    To the processes that `commands` have started; those that do not handle it are spared where others do.
    """

    noun: ClassVar[str] = "`signal`"
    short: ClassVar[tuple[Form, ...]] = (
        json_schema.pattern("[B:]NAME@duration", r"(?:[Bb]:)?[A-Z0-9]+@\S+"),
    )

    name: Text = Field(description="Such as `USR1`; `B:USR1` goes to the shell of `commands` alone.")
    before_s: Annotated[int, duration(never=False, low=1)] = Field(
        validation_alias="before", description="How long before the end."
    )
    shell_only: bool = Field(default=False, exclude=True)

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            request = schedule.parse_signal(data)
            return {"name": request.name, "before": str(request.before_s), "shell_only": request.shell_only}
        if isinstance(data, dict) and isinstance(data.get("name"), str):  # pyright: ignore[reportUnknownMemberType]
            written = cast("dict[str, object]", data)
            if "shell_only" in written:
                return written
            try:
                shell_only, name = schedule.parse_signal_name(cast(str, written["name"]))
            except Problem as problem:
                problem.at = ("name",)
                raise
            return {**written, "name": name, "shell_only": shell_only}
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `USR1@5m`, or `{name: USR1, before: 5m}`"

    @classmethod
    def properties(cls) -> dict[str, str]:
        return {"name": "name", "before": "before_s"}

    def plain(self) -> object:
        return schedule.render_signal(schedule.SignalRequest(self.name, self.before_s, self.shell_only))


class Checkpoint(Section):
    """Where a run keeps what it needs to go on: `ORCH_CHECKPOINT_DIR`."""

    noun: ClassVar[str] = "`checkpoint`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.PATH,)

    path: Annotated[str, absolute()] = Field(description="A folder on a volume or mount.")
    resume: Flag = Field(default=True, description="Set `ORCH_RESUME=1` from the second attempt on.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"path": data} if isinstance(data, str) else data

    @classmethod
    def form(cls) -> str:
        return "write `/checkpoints`"


class UtilizationPolicy(Section):
    """Ends a run that does not use its GPUs."""

    noun: ClassVar[str] = "`utilization_policy`"

    min_gpu_utilization: Annotated[int, whole(0, 100)] = Field(description="Percent.")
    time_window_s: Annotated[int, duration(never=False, low=300)] = Field(
        validation_alias="time_window", description="Any GPU below it for this long ends the run."
    )

    @classmethod
    def form(cls) -> str:
        return "write `{min_gpu_utilization: 10, time_window: 1h}`"


def _crons(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return cast("tuple[str, ...]", names_of("schedules", schedule.parse_cron).read(cast(object, value)))
    return (schedule.parse_cron(text(value)),)


class Schedule(Section):
    """Starts the run again and again, by a trigger outside (`orch schedule export`)."""

    noun: ClassVar[str] = "`schedule`"

    cron: Annotated[
        tuple[str, ...], Reads(_crons, json_schema.either("cron", json_schema.TEXT, json_schema.TEXTS))
    ] = Field(description="Five fields in UTC, one schedule or a list.")

    @classmethod
    def form(cls) -> str:
        return 'write `{cron: "0 3 * * *"}`'


class Dependency(Section):
    """A run that must end first."""

    noun: ClassVar[str] = "a dependency"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    run: Text = Field(description="Its name.")
    when: Annotated[Literal["succeeded", "finished", "failed"], choice("succeeded", "finished", "failed")] = (
        Field(default="succeeded", description="How it must end.")
    )

    @classmethod
    def expand(cls, data: object) -> object:
        return {"run": data} if isinstance(data, str) else data

    @classmethod
    def form(cls) -> str:
        return "write the name of a run, or `{run: NAME, when: finished}`"


def _dependencies(value: object) -> tuple[Section, ...]:
    if not isinstance(value, (list, tuple)):
        return (read_as(Dependency, value),)
    items: list[Section] = []
    wrong: list[tuple[Path, type[Section], object]] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            items.append(read_as(Dependency, item, (index,)))
        except Misread as error:
            wrong += error.parts
    if wrong:
        raise Misread(wrong)  # type: ignore[arg-type]
    return tuple(items)


Dependencies = Annotated[
    tuple[Dependency, ...],
    Reads(_dependencies, json_schema.TEXT, beside=True, write=lambda all_: [plain(each) for each in all_]),
]


class Array(Section):
    """One run per index."""

    noun: ClassVar[str] = "`array`"
    short: ClassVar[tuple[Form, ...]] = (
        json_schema.pattern(
            "indexes", r"[0-9]+(?:-[0-9]+(?::[0-9]+)?)?(?:\s*,\s*[0-9]+(?:-[0-9]+(?::[0-9]+)?)?)*(?:%[0-9]+)?"
        ),
        {"type": "integer", "minimum": 0},
    )

    spans: tuple[tuple[int, int, int], ...] = Field(exclude=True)
    at_once: int | None = Field(default=None, exclude=True)

    @classmethod
    def properties(cls) -> dict[str, str]:
        return {}

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, (str, int)):
            request = schedule.parse_array(str(data))
            return {"spans": request.spans, "at_once": request.at_once}
        if isinstance(data, dict) and set(cast("dict[str, object]", data)) == {"spans", "at_once"}:
            return cast(object, data)
        raise Problem(
            "ORCH112", f"`array` cannot be {_what(cast(object, data))}", hint="write `1-100` or `0-31:4%8`"
        )

    @property
    def indexes(self) -> tuple[int, ...]:
        """In ascending order, each once."""
        return schedule.ArrayRequest(self.spans).indexes

    def plain(self) -> object:
        return schedule.render_array(schedule.ArrayRequest(self.spans, self.at_once))


def _what(data: object) -> str:
    return (
        "a mapping"
        if isinstance(data, dict)
        else "a list"
        if isinstance(data, (list, tuple))
        else shown(str(data))
    )


class InstanceRef(Section):
    """A node to run on."""

    noun: ClassVar[str] = "an entry of `instances`"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text | None = Field(default=None, description="Its name.")
    hostname: Text | None = Field(default=None, description="Its host's name or address.")
    fleet: Text | None = Field(default=None, description="With `instance`: its fleet.")
    instance: Annotated[int | None, whole(0)] = Field(default=None, description="Its number in the fleet.")

    @classmethod
    def expand(cls, data: object) -> object:
        if isinstance(data, str):
            return {"name": data}
        if isinstance(data, dict):
            keys = {key for key, value in cast("dict[str, object]", data).items() if value is not None}
            if keys <= set(cls.model_fields) and keys not in ({"name"}, {"hostname"}, {"fleet", "instance"}):
                raise Problem("ORCH158", "this does not name one node", hint=cls.form())
        return cast(object, data)

    @classmethod
    def form(cls) -> str:
        return "write `NAME`, `{hostname: 10.0.0.4}` or `{fleet: pool, instance: 0}`"
