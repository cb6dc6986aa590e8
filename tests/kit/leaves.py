"""Every property of every document, found by walking the models: what generated tests are made from.

A `Leaf` is a place where a file holds one scalar. `Leaf.documents` are documents that hold a value there,
`valid` gives those without an error.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from orch.spec.diagnostics import property_path
from orch.spec.loader.load import Loaded, load_paths
from orch.spec.models import KINDS, ProjectSettings
from orch.spec.models.fields.base import Section

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBKrx4rDJg2Zm1Fz2Ym8Vz1e9m0wq3o0X4xYyTq1qf7N me"
# Texts of which at least one is valid in each place.
CANDIDATES = (
    "hello", "/data/here", "2", "3", "7", "5m", "16GB", "4..8", "24GB..80GB", "true", "false", "auto",
    "10.0.0.5", "10.0.0.0/24", "H100", "nvidia", "arm", "9.0", "USR1", "USR1@5m", "0 3 * * *", "aws", "gcp",
    "local", "us-east-1", "8080", "here.py:there.py", "/here:/there", "A=b", "static", "1..2", "3.12", "0",
    "mandatory", KEY, "H100:2", "2.50", "git@host.example:me/it", "1-4",
    "2099-01-01",
)  # fmt: skip
# What a block needs beside its required properties to mean one thing.
BESIDE: dict[str, tuple[dict[str, object], ...]] = {
    "Nodes": ({}, {"target": "12"}, {"target": "1", "max": "12"}),
    "Mount": ({}, {"source": "server:/export"}, {"type": "fsx-lustre"}, {"type": "filestore"}),
    "VolumeMount": ({}, {"instance_path": "/data"}, {"name": "data"}),
    "InitStep": ({}, {"run": "true"}),
    "InstanceRef": ({}, {"fleet": "lab"}, {"instance": "1"}),
    "Torchrun": ({}, {"program": "train.py"}),
    "Repo": ({}, {"local_path": "."}),
    "TaskGroup": ({}, {"commands": ["true"]}),
    "GcpServiceAccountCreds": ({}, {"filename": "key"}),
    "NebiusServiceAccountCreds": (
        {},
        {"filename": "key"},
        {"public_key_id": "a", "private_key_file": "b"},
        {"service_account_id": "a", "private_key_file": "b"},
        {"service_account_id": "a", "public_key_id": "b"},
    ),
    "OciClientCreds": ({}, {"key_file": "key"}),
    "Task": (
        {},
        {"image": "x"},
        {"image": "x", "nodes": "2"},
        {"image": "x", "max_duration": "1h"},
        {"commands": ["true"]},
    ),
    "DevEnvironment": ({}, {"ide": "vscode"}, {"max_duration": "1h"}),
    "Fleet": ({"nodes": "1"}, {}, {"nodes": "1", "resources": {"gpu": "H100:8"}}),
    "Volume": ({}, {"size": "100GB", "region": "r"}, {"volume_id": "v", "region": "r"}, {"region": "r"}),
    "ProjectSettings": ({}, {"project": "demo"}),
}
HEADS: dict[str, dict[str, object]] = {
    "fleet": {"type": "fleet", "name": "lab"},
    "task": {"type": "task", "name": "job"},
    "dev-environment": {"type": "dev-environment", "name": "lab"},
    "volume": {"type": "volume", "name": "disk"},
    "project": {},
}


KEYS = {"backend_options": "type", "os_image": "aws", "policies": "public-node", "parameters": "bastions"}


@dataclass(frozen=True)
class Step:
    """A property on the way to a leaf. `within`: what stands between it and the next block, or the scalar."""

    owner: type[Section]
    key: str
    name: str
    within: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class Leaf:
    kind: str
    steps: tuple[Step, ...]
    annotation: Any

    @property
    def path(self) -> tuple[str | int, ...]:
        return tuple(part for step in self.steps for part in (step.key, *step.within))

    def __str__(self) -> str:
        return f"{self.kind}:{'.'.join(map(str, self.path))}"

    def documents(self, value: object) -> Iterator[dict[str, object]]:
        """Documents with the value in its place, each with other things beside it."""
        return self._built(0, value, {**HEADS[self.kind]})

    def _built(self, at: int, value: object, head: dict[str, object]) -> Iterator[dict[str, object]]:
        step = self.steps[at]
        last = at == len(self.steps) - 1
        needed = minimal(step.owner, step.key)
        inner: Iterator[object] = (
            iter((value,)) if last else self._built(at + 1, value, {})  # type: ignore[assignment]
        )
        for content in inner:
            held = content
            for part in reversed(step.within):
                held = [held] if isinstance(part, int) else {part: held}
            for beside in BESIDE.get(step.owner.__name__, ({},)):
                yield {**head, **needed, **beside, step.key: held}


def leaves(kind: str) -> tuple[Leaf, ...]:
    """All of a kind of document, `project` for orch.yml."""
    model = ProjectSettings if kind == "project" else KINDS[kind]
    return tuple(leaf for leaf in _walk(kind, model, ()) if leaf.path != ("type",))


def all_leaves() -> tuple[Leaf, ...]:
    return tuple(leaf for kind in (*KINDS, "project") for leaf in leaves(kind))


def distinct_leaves() -> tuple[Leaf, ...]:
    """Of properties that several blocks hold alike, the first one of each kind of document."""
    found: dict[object, Leaf] = {}
    for leaf in all_leaves():
        last = leaf.steps[-1]
        found.setdefault((leaf.kind, last.owner, last.name, last.within), leaf)
    return tuple(found.values())


def _walk(kind: str, model: type[Section], before: tuple[Step, ...]) -> Iterator[Leaf]:
    for key, name in model.properties().items():
        if any(step.owner is model and step.name == name for step in before):
            continue  # a block within itself
        annotation = model.model_fields[name].annotation
        yield from _below(kind, (*before, Step(model, key, name)), annotation)


def _below(kind: str, steps: tuple[Step, ...], annotation: Any) -> Iterator[Leaf]:
    *before, last = steps
    scalar = False
    for part in _parts(annotation):
        origin, arguments = get_origin(part), get_args(part)
        if isinstance(part, type) and issubclass(part, Section):
            # Defaults hold documents of their own, whose properties are the same: spec/test_defaults.py.
            if part.__name__ in ("Fleet", "Task") and before:
                continue
            for block in part.variants():
                scalar = scalar or bool(block.short)
                yield from _walk(kind, block, steps)
        elif origin is tuple and arguments[-1] is not ...:
            scalar = True  # `2..4`
        elif origin is tuple:
            inner = Step(last.owner, last.key, last.name, (*last.within, 0))
            yield from _below(kind, (*before, inner), arguments[0])
        elif origin is dict:
            inner = Step(last.owner, last.key, last.name, (*last.within, KEYS.get(last.key, "X")))
            yield from _below(kind, (*before, inner), arguments[1])
        elif part is not type(None):
            scalar = True
    if scalar:
        yield Leaf(kind, steps, annotation)


def _parts(annotation: Any) -> tuple[Any, ...]:
    if hasattr(annotation, "__metadata__"):
        return _parts(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for part in get_args(annotation) for inner in _parts(part))
    return (annotation,)


@cache
def _required(model: type[Section]) -> tuple[tuple[str, str], ...]:
    """Required properties with a text that each takes, and `type` where it tells blocks apart."""
    found: list[tuple[str, str]] = []
    for key, name in model.properties().items():
        info = model.model_fields[name]
        words = [
            word for part in _parts(info.annotation) if get_origin(part) is Literal for word in get_args(part)
        ]
        if name == "type" and words:
            found.append((key, str(words[0])))
        elif info.is_required():
            found.append((key, str(words[0]) if words else _FIRST.get((model.__name__, key), "1")))
    return tuple(found)


_FIRST = {
    ("SshConfig", "hosts"): "[10.0.0.4]",
    ("Exemption", "expires"): "2099-01-01",
    ("Host", "hostname"): "10.0.0.4",
    ("Mount", "path"): "/shared",
    ("VolumeMount", "path"): "/there",
    ("Checkpoint", "path"): "/ckpt",
    ("Signal", "name"): "USR1",
    ("UtilizationPolicy", "time_window"): "1h",
    ("Schedule", "cron"): "0 3 * * *",
    ("Jump", "hostname"): "login.example",
    ("Volume", "backend"): "aws",
    ("OutputPath", "path"): "/out",
}


def minimal(model: type[Section], besides: str) -> dict[str, object]:
    return {
        key: yaml.safe_load(text) if text.startswith("[") else text
        for key, text in _required(model)
        if key != besides
    }


def written(folder: Path, leaf: Leaf, document: dict[str, object]) -> Path:
    path = folder / ("orch.yml" if leaf.kind == "project" else "document.yml")
    # A file that is written over is flushed to the disk when it is closed, a new one is not.
    path.unlink(missing_ok=True)
    path.write_text(
        yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=False), "utf-8"
    )
    return path


def values_of(leaf: Leaf) -> tuple[str, ...]:
    """What may be written there: the words of a choice, else anything of the candidates."""
    words = [
        str(word).lower() if isinstance(word, bool) else str(word)
        for part in _parts(leaf.annotation)
        if get_origin(part) is Literal
        for word in get_args(part)
    ]
    return tuple(dict.fromkeys((*words, *CANDIDATES)))


# What is wrong with a value alone, whatever stands beside it: a part of the table's "one property".
OF_A_VALUE = frozenset(
    f"ORCH{number}" for number in (111, 112, 115, 116, 119, 120, 121, 124, 125, 126, 128, 129, 137, 138, 139)
)
_refused: set[tuple[str, object]] = set()


def documents_read(
    folder: Path, leaf: Leaf, value: object, base: Callable[[dict[str, object]], dict[str, object]]
) -> Iterator[tuple[dict[str, object], Loaded]]:
    """The documents with a value at a leaf, upon a `base`, and what is read of each.

    A value that is wrong in itself is read once, upon one base: upon others it is as wrong, which a test of
    test_every_property.py shows. Upon one that has a value of its own there, it is read all the same.
    """
    if (str(leaf), value) in _refused and held_by(base({}), leaf) is None:
        return
    for document in leaf.documents(value):
        whole = base(document)
        loaded = load_paths([written(folder, leaf, whole)], environ={})
        yield whole, loaded
        if held_by(base({}), leaf) is None and wrong_in_itself(leaf, loaded):
            _refused.add((str(leaf), value))
            return


def held_by(document: dict[str, object], leaf: Leaf) -> object:
    """What a document has at a leaf's own block, or None."""
    return document.get(str(leaf.path[0]))


def wrong_in_itself(leaf: Leaf, loaded: Loaded) -> bool:
    return any(each.code in OF_A_VALUE and about(each.path, leaf) for each in loaded.diagnostics)


def about(path: str, leaf: Leaf) -> bool:
    """Whether a place in a file is that of a leaf, or of what it stands in: a `type` stands for its block."""
    own = property_path(leaf.path)
    path = path.removesuffix(".type") if "." in path else path
    return bool(path) and (own == path or own.startswith((f"{path}.", f"{path}[")) or path.startswith(own))


def valid(
    folder: Path, leaf: Leaf, candidates: tuple[str, ...] | None = None
) -> Iterator[tuple[str, dict[str, object], Loaded]]:
    """Documents without an error, by the value that they hold at the leaf."""
    for value in candidates if candidates is not None else values_of(leaf):
        for document in leaf.documents(value):
            loaded = load_paths([written(folder, leaf, document)], environ={})
            if not loaded.failed and loaded.documents:
                yield value, document, loaded
                break
