"""What the documents of a project need not repeat: `defaults` and `profiles` of its `orch.yml`.

A document is completed before it is read, node by node: a property that it writes stays its own as a whole,
one that it does not write is the profile's, else the default's. What is taken over keeps its place in
`orch.yml`, so that a mistake in it is told there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from orch.spec.diagnostics import Diagnostic
from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.values import shown
from orch.spec.loader.source import Entry, Mapping, Node, Scalar, Sequence, parse
from orch.spec.loader.text import Source, read
from orch.spec.models import MODELS
from orch.spec.models.backends import effective
from orch.spec.suggest import few, hint_for

if TYPE_CHECKING:
    from orch.spec.diagnostics import Span
    from orch.spec.loader.untrusted import Fence

# What every document has of its own.
OWN = frozenset({"type", "name"})
# Of which a document has one, so that writing any leaves the others out.
LAUNCHERS = frozenset({"commands", "torchrun", "mpirun", "groups"})
# What a document writes of the first leaves out the second, which does not go with it.
EXCLUDING = (
    (frozenset({"image"}), frozenset({"python", "nvcc", "docker"})),
    (frozenset({"python", "nvcc"}), frozenset({"image", "docker"})),
    (frozenset({"docker"}), frozenset({"image", "python", "nvcc"})),
    (frozenset({"groups"}), frozenset({"nodes", "ports", "entrypoint"})),
    (frozenset({"nodes", "ports", "entrypoint"}), frozenset({"groups"})),
    (frozenset({"reservation"}), frozenset({"spot_policy"})),
)
# Of fleets whose nodes are made; existing hosts have none of it.
PROVISIONED = (
    "nodes",
    "resources",
    "backends",
    "regions",
    "availability_zones",
    "instance_types",
    "spot_policy",
    "max_price",
    "reservation",
    "idle_duration",
    "retry",
    "tags",
    "backend_options",
    "network",
    "os_image",
    "gang",
    "ttl",
    "budget",
)
# What narrows the machines of clouds: nothing for nodes on this machine.
OF_CLOUDS = frozenset(
    {
        "regions",
        "availability_zones",
        "instance_types",
        "spot_policy",
        "max_price",
        "reservation",
        "backend_options",
        "network",
        "os_image",
        "budget",
    }
)


class UnknownProfile(OrchError):
    """No profile has the name that was asked for."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


@dataclass(frozen=True)
class Common:
    """What an `orch.yml` says for all documents. `profile`: the one that tasks are read with.

    `backends`: the types of those that it configures, for fleets that name none.
    """

    source: Source
    fleet: Mapping | None = None
    task: Mapping | None = None
    profiles: dict[str, Mapping] = field(default_factory=dict[str, Mapping])
    profile: str | None = None
    backends: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source, node: Node) -> Common:
        """Of an `orch.yml` that was read. What is wrong with it is told where it is read itself."""
        fleet, task = (_mapping(node, "defaults", kind) for kind in ("fleet", "task"))
        profiles: dict[str, Mapping] = {}
        chosen: str | None = None
        for each in _items(_at(node, "profiles")):
            name, default = _at(each, "name"), _at(each, "default")
            if not isinstance(each, Mapping) or not isinstance(name, Scalar):
                continue
            profiles.setdefault(name.text, each)
            if chosen is None and isinstance(default, Scalar) and default.text.lower() in _TRUE:
                chosen = name.text
        return cls(source, fleet, task, profiles, chosen, tuple(dict.fromkeys(_types(node))))

    @classmethod
    def in_file(cls, file: str) -> Common | None:
        """Of a file; None where that holds nothing that can be read."""
        source = read(file)
        if not isinstance(source, Source):
            return None
        parsed = parse(source)
        return cls.of(source, parsed.documents[0]) if parsed.documents else None

    @classmethod
    def trouble(cls, file: str) -> Diagnostic | None:
        """Why a file holds nothing that can be read; None where it is empty but for comments, or holds
        something."""
        source = read(file)
        found = (source,) if not isinstance(source, Source) else parse(source).diagnostics
        return next((each for each in found if each.code != "ORCH107"), None)

    def with_profile(self, name: str | None) -> Common:
        """The same with the profile of a name; None for the one that is the default.

        Raises UnknownProfile."""
        if name is None:
            return self
        if name not in self.profiles:
            raise UnknownProfile(
                f"there is no profile {shown(name)}",
                where=self.source.file,
                detail=f"its profiles: {few(self.profiles) or 'none'}",
                hint=hint_for(name, tuple(self.profiles)) or "add it under `profiles`, or name one of these",
            )
        return replace(self, profile=name)

    def completed(self, kind: str, node: Mapping) -> Mapping:
        """A document of a kind with what it does not write itself."""
        if kind not in ("fleet", "task"):
            return node
        entries = {key: entry for key, entry in node.entries.items() if not _is_null(entry.value)}
        for given in self._layers(kind):
            entries |= _more(kind, entries, given, self.backends)
        if all(node.entries.get(key) is entry for key, entry in entries.items()):
            return node
        empty = {key: entry for key, entry in node.entries.items() if key not in entries}
        return Mapping({**entries, **empty}, node.span, node.size + sum(map(_size, entries.values())))

    def line(self, span: Span) -> str | None:
        return self.source.line(span)

    def _layers(self, kind: str) -> Iterator[Mapping]:
        if kind == "task" and self.profile is not None:
            yield self.profiles[self.profile]
        if (given := self.fleet if kind == "fleet" else self.task) is not None:
            yield given


_TRUE = ("true", "yes", "on")


def _types(node: Node) -> Iterator[str]:
    """The types of the backends of an `orch.yml`; of a server's `projects` those of the one that is meant."""
    projects = _items(_at(node, "projects"))
    chosen = _at(node, "project")
    name = chosen.text if isinstance(chosen, Scalar) else None
    for project in projects:
        own = _at(project, "name")
        if len(projects) == 1 or (isinstance(own, Scalar) and own.text == name):
            yield from _types(project)
    for each in _items(_at(node, "backends")):
        if isinstance(kind := _at(each, "type"), Scalar):
            yield kind.text


def _more(
    kind: str, own: dict[str, Entry], given: Mapping, backends: tuple[str, ...] = ()
) -> dict[str, Entry]:
    """What of a layer a document takes over."""
    spellings = MODELS[kind].spellings
    written = {spellings.get(key, key) for key in own}
    found = {
        key: entry
        for key, entry in given.entries.items()
        if spellings.get(key, key) not in written
        and key not in (*OWN, "default")
        and not key.startswith("x-")
        and not _is_null(entry.value)
    }
    left_out = set[str]().union(*(others for some, others in EXCLUDING if written & some))
    if kind == "task" and written & LAUNCHERS:
        left_out |= LAUNCHERS
    elif kind == "fleet" and "ssh_config" in written:
        left_out |= set(PROVISIONED)
    elif kind == "fleet" and "nodes" in written:
        left_out.add("ssh_config")
    found = {key: entry for key, entry in found.items() if spellings.get(key, key) not in left_out}
    if kind == "fleet" and _is_local({**own, **found}, backends):
        found = {key: entry for key, entry in found.items() if spellings.get(key, key) not in OF_CLOUDS}
    return found


def _is_local(entries: dict[str, Entry], backends: tuple[str, ...]) -> bool:
    """Whether a fleet's nodes are on this machine. `backends`: those of `orch.yml`."""
    entry = entries.get("backends") or entries.get("backend")
    if entry is None:
        return "ssh_config" not in entries and effective(None, backends) == ("local",)
    names = [item.text for item in (*_items(entry.value), entry.value) if isinstance(item, Scalar)]
    return names == ["local"]


def _at(node: Node | None, key: str) -> Node | None:
    entry = node.entries.get(key) if isinstance(node, Mapping) else None
    return None if entry is None or _is_null(entry.value) else entry.value


def _mapping(node: Node, *keys: str) -> Mapping | None:
    found: Node | None = node
    for key in keys:
        found = _at(found, key)
    return found if isinstance(found, Mapping) else None


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, Sequence) else ()


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _size(entry: Entry) -> int:
    return entry.value.size


def near(path: str, fence: Fence | None = None) -> str | None:
    """The `orch.yml` nearest upwards from a file or folder, `-` for here. With a fence nothing beyond it is
    looked at, nor where a link leads that stands within."""
    if fence is not None and path != "-" and not fence.holds(path):
        return None
    start = os.getcwd() if path == "-" else os.path.abspath(path)
    folder = start if os.path.isdir(start) else os.path.dirname(start)
    top = None if fence is None else os.path.abspath(fence.root)
    while top is None or folder == top or folder.startswith(f"{top.rstrip('/')}/"):
        file = os.path.join(folder, "orch.yml")
        if (fence is None or fence.holds(file)) and os.path.isfile(file):
            return file
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return None
