"""The verbs of `python -m orch.rehearsal` for an account of Newcloud."""

from orch.rehearsal.shell import UnannouncedShell


class NewcloudShell(UnannouncedShell):
    title = "Newcloud"
    kind = "machine"


SHELL = NewcloudShell
