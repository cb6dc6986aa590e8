"""What clouds, and this machine, hold that bears orch's marks. Pure.

Each resource is marked with the stack it was made for: `project/stack/scope`, where the scope, six hex
digits, tells states of one project's name from each other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orch.components.cloud_errors import CloudRefused
from orch.spec.errors import OrchError

Price = Callable[[str, str, bool], "float | None"]
"""A machine type, a region and whether it is spot -> US dollars an hour, None where it is not known."""

_WORDS = re.compile(r"orch:stack=(\S+) orch:urn=(\S+)")


_CLOUD_NAME = re.compile(r"(?P<name>.+)-(?P<scope>[0-9a-f]{6})-(?P<stack>[0-9a-f]{6})-[0-9a-f]{6}")


def cloud_name(
    name: str, mark: str, spec: Mapping[str, Any] | None = None, *, most: int | None = None
) -> str:
    """The name of something in a cloud without labels, which tells whose it is: `NAME-SCOPE-STACK-SPEC`.

    `name` begins with that of the stack. STACK is a digest of the mark, SPEC one of the name and of what was
    asked for: nobody's resource is taken over, nor one that was asked for otherwise. Without `spec`, SPEC is
    left out. `most`: how long it may be, 63 at least; `name` is cut for it, and the longest name of a stack
    fits.
    """
    parts = [mark.rpartition("/")[2], _digest(mark)]
    if spec is not None:
        parts.append(_digest(json.dumps([name, spec], sort_keys=True)))
    ending = "-".join(parts)
    return f"{name if most is None else name[: most - len(ending) - 1]}-{ending}"


def is_ours(name: str) -> bool:
    """Whether a name in the cloud is one that orch gives."""
    return _CLOUD_NAME.fullmatch(name) is not None


def mark_of(name: str, project: str) -> str | None:
    """The mark that a name in the cloud bears, of whatever stack of a project; None where it is another
    project's, or none of orch's."""
    found = _CLOUD_NAME.fullmatch(name)
    if found is None:
        return None
    words = found["name"].split("-")
    marks = (f"{project}/{'-'.join(words[:end])}/{found['scope']}" for end in range(len(words), 0, -1))
    return next((mark for mark in marks if _digest(mark) == found["stack"]), None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@dataclass(frozen=True)
class MarkedResource:
    """Something that bears a stack's mark.

    `kind`: as its cloud calls it; `id`: as the engine records it; `name`: in its stack. `part_of`: the id of
    what made it and removes it. `hourly`: US dollars an hour, None where it is not known. `holds_data`:
    nothing else has what is on it; `mounted_as`: how mounts of it name it. `sure`: False where its mark may
    be another project's. `type`: as the engine calls it, "" where the mark does not tell. `machine`: the id
    of a machine as records of nodes have it, "" where a look does not tell.
    """

    backend: str
    mark: str
    kind: str
    id: str
    name: str
    region: str = ""
    created: datetime | None = None
    hourly: float | None = None
    holds_data: bool = False
    part_of: str | None = None
    mounted_as: tuple[str, ...] = ()
    sure: bool = True
    type: str = ""
    machine: str = ""


MACHINES = ("instance", "VM", "pod", "Instant Cluster", "container")
"""The kinds of what jobs run on, in the words of all clouds."""


def machine_name(resource: MarkedResource) -> str | None:
    """The name of a machine in its stack, "" where that is not known; None for what is none. Names in clouds
    without labels have more."""
    if resource.kind not in MACHINES or resource.holds_data:
        return None
    stack = re.escape(stack_of(resource.mark))
    # A label has no `::` before the name.
    named = re.search(rf"(?:^|__)({stack}-(?:\d+|bastion))(?:-[0-9a-f]{{6}}){{0,3}}$", resource.name)
    return named[1] if named else ""


@dataclass(frozen=True)
class Survey:
    """What a look found.

    `foreign`: how many marked resources are of other projects. `unseen`: what could not be looked at;
    `closed`: kinds that these credentials may not list, and that many accounts do not use.
    """

    resources: tuple[MarkedResource, ...] = ()
    foreign: int = 0
    unseen: tuple[OrchError, ...] = ()
    closed: tuple[OrchError, ...] = ()

    def joined(self, other: Survey) -> Survey:
        """Both."""
        return Survey(
            (*self.resources, *other.resources),
            self.foreign + other.foreign,
            (*self.unseen, *other.unseen),
            (*self.closed, *other.closed),
        )

    def refused(self, refusal: CloudRefused, *, rare: bool) -> Survey:
        """The same with a refusal; `rare`: many accounts do not use what it is of, nor let it be listed."""
        if rare and refusal.error is not None and refusal.error.kind == "permission":
            return replace(self, closed=(*self.closed, refusal))
        return replace(self, unseen=(*self.unseen, refusal))


def survey_of(project: str, marked: Iterable[MarkedResource]) -> Survey:
    """Those of a project, and how many are of others."""
    own, foreign = list[MarkedResource](), 0
    for each in marked:
        if project_of(each.mark) == project:
            own.append(each)
        else:
            foreign += 1
    return Survey(tuple(own), foreign)


def project_of(mark: str) -> str:
    """The project of a mark; no name of a stack or scope has a slash."""
    return mark.rsplit("/", 2)[0] if mark.count("/") >= 2 else ""


def stack_of(mark: str) -> str:
    """The name of a mark's stack."""
    return mark.rsplit("/", 2)[1] if mark.count("/") >= 2 else mark


def words_of(description: str) -> tuple[str, str] | None:
    """The mark and the `TYPE::NAME` in a description; None without."""
    match = _WORDS.search(description)
    return (match[1], match[2]) if match else None


def marks_in(inputs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The marks that resources of a stack were made with, but for labels that spell them in another way."""
    for each in inputs:
        if isinstance(each.get("mark"), str):
            yield each["mark"]
        for kind, key in (("tags", "orch:stack"), ("labels", "orch-stack")):
            words = each.get(kind)
            if isinstance(words, Mapping) and "/" in str(words.get(key)):
                yield str(words[key])
        if found := words_of(str(each.get("description") or "")):
            yield found[0]


@dataclass(frozen=True)
class Leftovers:
    """Marked resources of a project that its state does not record.

    `orphans`: of stacks of this state; `held`: the same, of a stack that somebody changes at this moment;
    `unknown`: of a stack that this state does not have, under that scope at least; `data`: those of both that
    hold data; `unsure`: those that may be of another project, and that nothing deletes.
    """

    orphans: tuple[MarkedResource, ...] = ()
    held: tuple[MarkedResource, ...] = ()
    unknown: tuple[MarkedResource, ...] = ()
    data: tuple[MarkedResource, ...] = ()
    unsure: tuple[MarkedResource, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.orphans or self.held or self.unknown or self.data or self.unsure)

    def of(self, marks: Collection[str]) -> Leftovers:
        """Those that surely have one of these marks."""

        def some(resources: tuple[MarkedResource, ...]) -> tuple[MarkedResource, ...]:
            return tuple(each for each in resources if each.mark in marks)

        return Leftovers(some(self.orphans), some(self.held), some(self.unknown), some(self.data))

    @property
    def marks(self) -> frozenset[str]:
        return frozenset(each.mark for each in self.all)

    @property
    def all(self) -> tuple[MarkedResource, ...]:
        """What has a mark of this project for sure."""
        return tuple(dict.fromkeys((*self.orphans, *self.held, *self.unknown, *self.data)))


def leftovers(
    resources: Iterable[MarkedResource],
    owners: Mapping[str, str],
    recorded: Collection[str],
    held: Collection[str] = (),
) -> Leftovers:
    """Sort what a look found.

    `owners`: the stack of this state, by mark; `recorded`: ids that any stack of it has; `held`: stacks that
    somebody changes.
    """
    found: dict[str, list[MarkedResource]] = {
        kind: [] for kind in ("orphans", "held", "unknown", "data", "unsure")
    }
    for each in resources:
        if each.id in recorded or each.part_of in recorded:
            continue
        stack = owners.get(each.mark)
        if not each.sure:
            kind = "unsure"
        elif stack is not None and stack in held:
            kind = "held"
        elif each.holds_data:
            kind = "data"
        else:
            kind = "unknown" if stack is None else "orphans"
        found[kind].append(each)
    return Leftovers(**{kind: tuple(rows) for kind, rows in found.items()})
