"""`defaults` and `profiles` of `orch.yml`, which complete the documents of a project.

A document is completed before it is read, node by node: a property that it writes stays as written, as a
whole; one that it does not write comes from the profile, else from the defaults. An inherited property keeps
its place in `orch.yml`, so that a mistake in it is reported there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orch.spec.diagnostics import Diagnostic
from orch.spec.document.compose import parse
from orch.spec.document.text import Source, read
from orch.spec.document.ways import ways_up
from orch.spec.document.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence
from orch.spec.errors import ExitCode, OrchError
from orch.spec.grammar.values import shown
from orch.spec.models import MODELS
from orch.spec.models.backends import effective
from orch.spec.suggest import few, hint_for

if TYPE_CHECKING:
    from orch.spec.diagnostics import Span
    from orch.spec.document.fence import Fence

# Properties that a document never inherits.
OWN = frozenset({"type", "name"})
# A document has one of these, so writing any excludes the others.
LAUNCHERS = frozenset({"commands", "torchrun", "mpirun", "groups"})
# Writing a property of the first set excludes those of the second, which conflict with it.
EXCLUDING = (
    (frozenset({"image"}), frozenset({"python", "nvcc", "docker"})),
    (frozenset({"python", "nvcc"}), frozenset({"image", "docker"})),
    (frozenset({"docker"}), frozenset({"image", "python", "nvcc"})),
    (frozenset({"groups"}), frozenset({"nodes", "ports", "entrypoint"})),
    (frozenset({"nodes", "ports", "entrypoint"}), frozenset({"groups"})),
    (frozenset({"reservation"}), frozenset({"spot_policy"})),
)
# Properties of provisioned fleets; existing hosts have none of them.
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
# Properties that select machines of clouds; nodes on this machine ignore them.
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
    """No profile has the requested name."""

    exit_code: ExitCode = ExitCode.USAGE


@dataclass(frozen=True)
class Common:
    """Defaults and profiles of an `orch.yml`. `profile`: the one that completes tasks.

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
        """From the node of an `orch.yml`. Its mistakes are reported where it is loaded itself."""
        fleet, task = (_mapping(node, "defaults", kind) for kind in ("fleet", "task"))
        profiles: dict[str, Mapping] = {}
        default_profile: str | None = None
        for each in _items(_at(node, "profiles")):
            name, default = _at(each, "name"), _at(each, "default")
            if not isinstance(each, Mapping) or not isinstance(name, Scalar):
                continue
            profiles.setdefault(name.text, each)
            if default_profile is None and isinstance(default, Scalar) and default.text.lower() in _TRUE:
                default_profile = name.text
        return cls(source, fleet, task, profiles, default_profile, tuple(dict.fromkeys(_types(node))))

    @classmethod
    def in_file(cls, file: str) -> Common | None:
        """From a file; None for one that cannot be read or holds no document."""
        source = read(file)
        if not isinstance(source, Source):
            return None
        parsed = parse(source)
        return cls.of(source, parsed.documents[0]) if parsed.documents else None

    @classmethod
    def read_error(cls, file: str) -> Diagnostic | None:
        """Return the reason a file cannot be read; None if it can, or holds nothing but comments."""
        source = read(file)
        diagnostics = (source,) if not isinstance(source, Source) else parse(source).diagnostics
        return next((each for each in diagnostics if each.code != "ORCH107"), None)

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
        """A document of a kind completed by the profile and the defaults."""
        if kind not in ("fleet", "task"):
            return node
        entries = {key: entry for key, entry in node.entries.items() if not _is_null(entry.value)}
        for layer in self._layers(kind):
            entries |= _inherited(kind, entries, layer, self.backends)
        if all(node.entries.get(key) is entry for key, entry in entries.items()):
            return node
        empty = {key: entry for key, entry in node.entries.items() if key not in entries}
        return Mapping({**entries, **empty}, node.span, node.size + sum(map(_size, entries.values())))

    def line(self, span: Span) -> str | None:
        return self.source.line(span)

    def _layers(self, kind: str) -> Iterator[Mapping]:
        if kind == "task" and self.profile is not None:
            yield self.profiles[self.profile]
        if (layer := self.fleet if kind == "fleet" else self.task) is not None:
            yield layer


_TRUE = ("true", "yes", "on")


def _types(node: Node) -> Iterator[str]:
    """The types of the backends of an `orch.yml`; of its `projects` only the one that it selects."""
    projects = _items(_at(node, "projects"))
    project_name = _at(node, "project")
    name = project_name.text if isinstance(project_name, Scalar) else None
    for project in projects:
        own = _at(project, "name")
        if len(projects) == 1 or (isinstance(own, Scalar) and own.text == name):
            yield from _types(project)
    for each in _items(_at(node, "backends")):
        if isinstance(kind := _at(each, "type"), Scalar):
            yield kind.text


def _inherited(
    kind: str, entries: dict[str, Entry], layer: Mapping, backends: tuple[str, ...] = ()
) -> dict[str, Entry]:
    """The entries of a layer that a document inherits."""
    spellings = MODELS[kind].spellings
    written = {spellings.get(key, key) for key in entries}
    inherited = {
        key: entry
        for key, entry in layer.entries.items()
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
    inherited = {key: entry for key, entry in inherited.items() if spellings.get(key, key) not in left_out}
    if kind == "fleet" and _is_local({**entries, **inherited}, backends):
        inherited = {
            key: entry for key, entry in inherited.items() if spellings.get(key, key) not in OF_CLOUDS
        }
    return inherited


def _is_local(entries: dict[str, Entry], backends: tuple[str, ...]) -> bool:
    """Return True if a fleet's nodes are on this machine. `backends`: those of `orch.yml`."""
    entry = entries.get("backends") or entries.get("backend")
    if entry is None:
        return "ssh_config" not in entries and effective(None, backends) == ("local",)
    names = [item.text for item in (*_items(entry.value), entry.value) if isinstance(item, Scalar)]
    return names == ["local"]


def _at(node: Node | None, key: str) -> Node | None:
    entry = node.entries.get(key) if isinstance(node, Mapping) else None
    return None if entry is None or _is_null(entry.value) else entry.value


def _mapping(node: Node, *keys: str) -> Mapping | None:
    current: Node | None = node
    for key in keys:
        current = _at(current, key)
    return current if isinstance(current, Mapping) else None


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, Sequence) else ()


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _size(entry: Entry) -> int:
    return entry.value.size


def nearest_project_file(path: str, fence: Fence | None = None) -> str | None:
    """The `orch.yml` nearest upwards from a file or folder (`-`: here), or None.

    With a fence only folders inside it are searched, and a link that leads out of it is not followed."""
    if fence is None:
        files = (os.path.join(folder, "orch.yml") for way in ways_up(path) for folder in way)
        return next(filter(os.path.isfile, files), None)
    if path != "-" and not fence.holds(path):
        return None
    start = os.getcwd() if path == "-" else os.path.abspath(path)
    folder = start if os.path.isdir(start) else os.path.dirname(start)
    top = os.path.abspath(fence.root)
    while folder == top or folder.startswith(f"{top.rstrip('/')}/"):
        file = os.path.join(folder, "orch.yml")
        if fence.holds(file) and os.path.isfile(file):
            return file
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return None
