"""What was planned by a fleet's file is not carried out by another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit.support import Folder

from orch.stacks.errors import Conflict
from orch.stacks.plans.request import FleetRequest, content_of, refuse_changed, request_of
from orch.stacks.project.project import find

pytestmark = pytest.mark.quick

FILE = "type: fleet\nname: lab\nnodes: 2\nbackends: [aws]\nregions: [us-east-1]\ninit: [{file: boot.sh}]\n"


def read(folder: Folder, text: str = FILE) -> FleetRequest:
    folder.write("lab.yml", text)
    return request_of(find(folder.path), "lab")


def test_a_file_that_says_something_else_is_refused_and_other_places_are_not(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: tests\n")
    folder.write("boot.sh", "true\n")
    before = content_of(read(folder))
    for same in (
        FILE + "# a comment\n",
        FILE.replace("us-east-1", "us-west-2") + "instance_types: [g6.xlarge]\n",
        FILE + "availability_zones: [us-east-1b]\n",
    ):
        refuse_changed(read(folder, same), before, "no node is moved")
    for other in (FILE.replace("nodes: 2", "nodes: 1"), FILE + "resources: {disk: 300GB..}\n"):
        with pytest.raises(Conflict, match="was changed since this was planned: no node is moved") as refused:
            refuse_changed(read(folder, other), before, "no node is moved")
        assert refused.value.code == "ORCH406"
    request = read(folder)
    folder.write("boot.sh", "false\n")
    with pytest.raises(Conflict):
        refuse_changed(request, before, "no node is moved")
    refuse_changed(replace(request, count=1), "", "what an earlier version planned tells nothing")
