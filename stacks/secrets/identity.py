"""The private key of a fleet as this folder has it, and the note beside it that tells whose it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orch.runner.private import private_folder, write_private
from orch.stacks.project.project import Project


@dataclass(frozen=True)
class KeyNote:
    """Owner of a key: the fleet, by the first of its `machine`s (`NodeState.access.machine`), and its
    `public` half, which differs once the fleet's keys were rotated."""

    machine: str
    public: str

    @property
    def text(self) -> str:
        return f"{self.machine}\n{self.public}"

    @classmethod
    def parse(cls, text: str) -> KeyNote:
        """Also a note of a former version, which had no public key."""
        machine, _, public = text.partition("\n")
        return cls(machine, public)


def key_file(project: Project, fleet: str) -> Path:
    """Return the path of a fleet's key."""
    return project.dot / "keys" / fleet


def read_note(project: Project, fleet: str) -> KeyNote | None:
    """Return the note on the owner of a fleet's key; None without a key, or without a note."""
    try:
        return KeyNote.parse(_note_file(project, fleet).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write_key(project: Project, fleet: str, private: str, note: KeyNote) -> Path:
    """Write the key of a fleet, and whose it is."""
    file = key_file(project, fleet)
    private_folder(file.parent)
    write_private(file, private.strip() + "\n")
    write_private(_note_file(project, fleet), note.text)
    return file


def delete_key(project: Project, fleet: str) -> None:
    """Delete the key of a fleet that was removed."""
    for file in (key_file(project, fleet), _note_file(project, fleet)):
        file.unlink(missing_ok=True)


def _note_file(project: Project, fleet: str) -> Path:
    return key_file(project, fleet).with_name(f"{fleet}.of")
