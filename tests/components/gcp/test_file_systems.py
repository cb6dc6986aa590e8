"""An `up` that is killed while it creates a Filestore."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import L4, RehearsedGcp


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("engine")
def test_an_up_that_is_killed_goes_on_and_leaves_no_second_filestore(tmp_path: Path) -> None:
    there = RehearsedGcp.make(tmp_path)
    mounts = [{"type": "filestore", "path": "/shared", "create": "true"}]
    file = there.fleet(1, instance_types=[L4], placement="any", mounts=mounts)
    there.killed_at({"action": "file.instances.insert", "nth": 1, "when": "after"}, "up", file)
    (begun,) = there.cloud.things("filestore-instance").values()
    said = there.up(file)
    assert said.code == 0, said.err
    (made,) = there.cloud.things("filestore-instance").values()
    assert made["createTime"] != begun["createTime"]
    assert there.unrecorded() == {}
    assert there.down().code == 0
    assert there.cloud.everything() == {}
