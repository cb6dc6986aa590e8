"""Cloud-config of a machine: files, the user's `init` scripts, marks for what is known later. Pure."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orch.components.findings import Finding
from orch.components.plan import Previous
from orch.spec.diagnostics import Severity
from orch.spec.models import Fleet
from orch.spec.models.blocks import InitStep, Scratch
from orch.templates import render

JUMP_USER = "jump"


@dataclass(frozen=True)
class File:
    """A file of the node. A script of the user's travels encoded: it may hold what YAML does not."""

    path: str
    content: str
    mode: str = "0644"
    foreign: bool = False

    @property
    def encoded(self) -> str:
        return b64encode(self.content.encode()).decode() if self.foreign else ""


@dataclass(frozen=True)
class Step:
    """A script of `init`. `mark` names the file that says it has run; it differs when the script does."""

    name: str
    file: str
    content: str
    when: str
    timeout_s: int
    user: str
    env: Mapping[str, str]

    @property
    def mark(self) -> str:
        if self.when == "create":
            return f"{self.file}.done"
        text = repr((self.content, sorted(self.env.items()), self.user))
        return f"{self.file}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def steps(fleet: Fleet, scripts: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps of `init`. `scripts`: the text of `init[].file` by path."""
    return tuple(_step(index, step, scripts) for index, step in enumerate(fleet.init))


def node_config(fleet: Fleet, files: Sequence[File]) -> str:
    """The cloud-config of a node, with marks for its name and keys."""
    # Its folder is what tells a runner that the preparation is under way, before that has begun.
    begun = File("/var/lib/orch/boot/README", "What orch-prepare found: `ok`, or `failed` with the reason.\n")
    return render(
        "cloud-init-node.yml.j2",
        fleet=fleet.name,
        hostname="@@NAME@@",
        authorized_keys=fleet.authorized_keys,
        files=(begun, *files),
    )


def first_boot_pins(fleet: Fleet, scripts: Mapping[str, str]) -> dict[str, str]:
    """Marks of what a node is given at its first boot alone: one for each property, where it is written."""
    given = {
        "init": repr([(step.mark, step.when) for step in steps(fleet, scripts)]) if fleet.init else "",
        "authorized_keys": repr(sorted(fleet.authorized_keys)) if fleet.authorized_keys else "",
    }
    return {
        f"boot.{name}": hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in given.items() if text
    }


def first_boot_findings(previous: Previous, pins: Mapping[str, str], live: int) -> Iterator[Finding]:
    """Warnings of changes that the `live` running nodes do not get."""
    if not live:
        return
    for name in ("init", "authorized_keys"):
        key = f"boot.{name}"
        if previous.pins.get(key) != pins.get(key):
            yield Finding(
                "ORCH232",
                name,
                f"`{name}` is given to new nodes only: the {live} that run keep what they were made with",
                hint="`orch fleet delete NAME -i N` and `orch up` make a node anew",
                severity=Severity.WARNING,
            )


def bastion_config(fleet: str) -> str:
    """The cloud-config of a machine that passes SSH on."""
    return render("cloud-init-bastion.yml.j2", fleet=fleet, hostname="@@NAME@@", user=JUMP_USER)


def scratch(fleet: Fleet, disks: int) -> Scratch | None:
    """What becomes of the local disks; None: they are left alone."""
    if isinstance(fleet.scratch, Scratch):
        return fleet.scratch
    if fleet.scratch is True or (fleet.scratch == "auto" and disks):
        return Scratch()
    return None


def filled(text: str, *, name: str, host_key: str, host_key_public: str, authorized_key: str) -> str:
    """The same with a machine's name and keys."""
    key = host_key.strip().replace("\n", "\n    ")
    marks = {
        "NAME": name,
        "HOST_KEY": key,
        "HOST_KEY_PUBLIC": host_key_public,
        "AUTHORIZED_KEY": authorized_key,
    }
    for mark, value in marks.items():
        text = text.replace(f"@@{mark}@@", value.strip())
    return text


def _step(index: int, step: InitStep, scripts: Mapping[str, str]) -> Step:
    content = scripts.get(step.file, "") if step.file else step.run or ""
    return Step(
        name=step.name or f"step {index}",
        file=f"{index:02d}",
        content=content if content.endswith("\n") else content + "\n",
        when=step.when,
        timeout_s=step.timeout_s,
        user=step.user,
        env={key: value for key, value in step.env.items() if value is not None},
    )
