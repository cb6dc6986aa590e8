"""Each property of each model, for each backend: refused by name, or looked at by what plans and runs.

Generated from the models: a property that is added is asked for here at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest
from kit import acting
from kit.acting import Act
from kit.clouds.plan_cases import case_type, clouds
from kit.leaves import Leaf, about, documents_read, leaves, values_of, written, wrong_in_itself
from kit.tracing import Reads, traced

from orch.spec.errors import OrchError
from orch.spec.findings import PlanError
from orch.spec.loader.load import Loaded, load_paths
from orch.spec.models import Range
from orch.spec.models.fields.base import Section
from orch.spec.rules.unsupported import not_acted_on

BASES: dict[str, dict[str, Any]] = {
    "local": {"backends": ["local"], "nodes": "2"},
    "ssh": {"ssh_config": {"hosts": ["127.0.0.2", "127.0.0.3"], "port": "1", "connect_timeout": "1s"}},
    **{name: {"backends": [name], **case_type(name).wish} for name in clouds()},
}
# Values that mean something to a cloud, a state or the nodes of these tests; tried before those of `leaves`.
MEANT = (
    "sqlite:///ledger.db",
    "us-east-1",
    "p5.48xlarge",
    "a3-megagpu-8g",
    "H100:8",
    "H100",
    "nvidia",
    "80GB",
    "38400GB",  # a size of FSx for Lustre and of Filestore
    "125",
    "640GB",
    "8",
    "x86",
)
READ_OTHERWISE = "ORCH195"
"""That `nodes` of what is made with runs is read as `0..N`."""
AS_REFERENCE = "ORCH132"
"""That a secret should be a reference says nothing of what acts on it."""
NOTHING_TO_ACT_ON = {
    # What a document is, and what it is called: read as the document is found.
    ("Fleet", "type"),
    ("Task", "type"),
    ("Fleet", "backends"),
    # Which entry of a list it is.
    *(
        (name, "type")
        for name in ("LocalSettings", "AwsSettings", "GcpSettings", "AwsDefaultCreds", "DefaultCreds")
    ),
    ("AccessKeyCreds", "type"),
    ("GcpServiceAccountCreds", "type"),
}


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in more.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def holders(model: Section, leaf: Leaf) -> Iterator[tuple[Section, str]]:
    """The objects on the way to a leaf, each with the attribute that leads on; the leaf's own comes last."""
    here: Any = model
    for step in leaf.steps:
        if not isinstance(here, Section) or step.name not in type(here).model_fields:
            return
        yield here, step.name
        here = here.__dict__[step.name]
        for part in step.within:
            if isinstance(part, int) and isinstance(here, tuple):
                here = here[part] if len(here) > part else None
            elif isinstance(here, dict):
                here = here.get(part)


def documents(folder: Path, leaf: Leaf, base: Mapping[str, Any]) -> Iterator[tuple[str, Loaded]]:
    """Documents of a backend that hold something else than the default at a leaf; wrong ones too."""
    last = leaf.steps[-1]
    default = last.owner.model_fields[last.name].get_default(call_default_factory=False)

    def upon(document: Mapping[str, Any]) -> dict[str, Any]:
        whole = merged(base, document)
        return {**whole, "nodes": base.get("nodes")} if own_nodes else whole

    own_nodes = leaf.kind == "fleet" and leaf.path[0] != "nodes"
    for value in (*MEANT, *values_of(leaf)):
        for _, loaded in documents_read(folder, leaf, value, upon):
            if loaded.documents and not loaded.failed:
                *_, (owner, name) = holders(loaded.documents[0].model, leaf)
                replaced = any(each.code == READ_OTHERWISE for each in loaded.diagnostics)
                if owner.__dict__[name] == default and not replaced:
                    continue
            yield value, loaded


def acted_on(folder: Path, leaf: Leaf, base: Mapping[str, Any], act: Act) -> tuple[bool, str]:
    """Whether a property is refused by name or looked at, and how that was seen."""
    wrong: set[str] = set()
    for value, loaded in documents(folder, leaf, base):
        told = [each for each in loaded.diagnostics if about(each.path, leaf) and each.code != AS_REFERENCE]
        if loaded.failed or not loaded.documents:
            if any(each.code == "ORCH140" for each in loaded.diagnostics):
                return True, f"{value}: ORCH140"
            wrong |= {each.code for each in told}
            continue
        (document, *_) = loaded.documents
        if found := [each for each in (*not_acted_on(document.draft), *told) if about(each.path, leaf)]:
            return True, f"{value}: {found[0].code} at {found[0].path}"
        said = ""
        *_, (owner, name) = holders(document.model, leaf)
        held = owner.__dict__[name]
        with traced() as reads, closing(act(document, folder, [])) as steps:
            try:
                for _ in steps:
                    if reads.of(owner, name) and not unseen(held, reads):
                        break
            except PlanError as error:
                findings = getattr(error, "findings", (error,))
                said = next((each.code for each in findings if about(each.path, leaf)), "")
            except OrchError:
                pass
        if said:
            return True, f"{value}: {said}"
        if not reads.of(owner, name):
            return False, f"{value}: nothing looks at it"
        if ends := unseen(held, reads):
            return False, f"{value}: nothing looks at its {ends[0]}"
        return True, f"{value}: read"
    return single(leaf), f"nothing valid can be written: {sorted(wrong)}"


def unseen(held: object, reads: Reads) -> list[str]:
    """Ends of a range that nothing has looked at."""
    if not isinstance(held, Range):
        return []
    ends = {end: held.__dict__[end] for end in ("min", "max")}
    return [end for end, value in ends.items() if value is not None and not reads.of(held, end)]


def single(leaf: Leaf) -> bool:
    """Whether there is one thing to write alone, which is so anyway."""
    return len({*get_args(leaf.annotation)}) == 1


def idle(folder: Path, kind: str, base: Mapping[str, Any], act: Act) -> dict[str, str]:
    """Properties of a kind of document that are neither refused nor acted on, and how that was seen."""
    found, refused = dict[str, str](), set[object]()
    for leaf in leaves(kind):
        last = leaf.steps[-1]
        if leaf.path[0] == "profiles" or leaf.path[::2][:2] == ("projects", "backends"):
            # What a task takes over is the task's: spec/test_defaults.py. Backends are alike wherever they
            # stand: stacks/test_project.py, spec/launch/projects.
            continue
        if (last.owner.__name__, last.name) in NOTHING_TO_ACT_ON or leaf.path[0] in refused:
            continue
        good, how = acted_on(folder, leaf, base, act)
        if how.endswith(f"ORCH118 at {leaf.path[0]}"):
            refused.add(leaf.path[0])  # and so is all that stands in it
        if not good:
            found[f"{leaf} of {last.owner.__name__}"] = how  # entries of `backends` have the same place
    return found


@pytest.mark.parametrize("backend", BASES)
def test_each_property_of_a_fleet_is_refused_or_acted_on(tmp_path: Path, backend: str) -> None:
    assert idle(tmp_path, "fleet", BASES[backend], acting.act_on(backend)) == {}


@pytest.mark.parametrize(
    "backend", ["local", "aws", *(pytest.param(each, marks=pytest.mark.soak) for each in ("ssh", "gcp"))]
)
def test_each_property_of_a_task_is_refused_or_acted_on(tmp_path: Path, backend: str) -> None:
    (tmp_path / "here").mkdir()
    # `repos` names this folder.
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "1")
    for words in (("init", "-q"), commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert idle(tmp_path, "task", {}, acting.run_on(backend)) == {}


def test_each_property_of_a_project_is_refused_or_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("key", "b"):  # what logins of `leaves` name
        (tmp_path / file).write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert idle(tmp_path, "project", {}, acting.use_project) == {}


def test_what_is_wrong_with_a_value_alone_is_so_with_every_backend(tmp_path: Path) -> None:
    wrong = 0
    for leaf in leaves("fleet"):
        if any(leaf.path[0] in base for base in BASES.values()):
            continue
        for document in leaf.documents("$(canary)"):
            read = [
                load_paths([written(tmp_path, leaf, merged(base, document))], environ={})
                for base in BASES.values()
            ]
            # A property that a backend does not take is not looked at there.
            taken = [each for each in read if all(told.code != "ORCH140" for told in each.diagnostics)]
            assert len({wrong_in_itself(leaf, each) for each in taken}) == 1, leaf
            wrong += wrong_in_itself(leaf, taken[0])
    assert wrong > 30
