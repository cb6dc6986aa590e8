"""Who asks for a backend that cannot be used here is told of one that can."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import Folder

ANY = (
    "use `aws`, `crusoe`, `gcp`, `kubernetes`, `lambda`, `local`, `nebius` or `runpod`, "
    "or existing hosts with `ssh_config`"
)


@pytest.mark.parametrize("verb", [("preview",), ("up", "--yes")], ids=" ".join)
@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ("project: lab\n", ANY),
        ("project: lab\nbackends: [{type: gcp, project_id: x}]\n", "use `gcp`, which `orch.yml` configures"),
        (
            "project: lab\nbackends: [{type: gcp, project_id: x}, {type: aws}]\n",
            "use `aws` or `gcp`, which `orch.yml` configures",
        ),
    ],
    ids=["none", "one", "two"],
)
def test_a_backend_that_is_configured_is_named(
    tmp_path: Path, verb: tuple[str, ...], settings: str, hint: str
) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", settings)
    file = folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 2\nbackends: [oci]\n")
    said = folder.orch(verb[0], file, *verb[1:])
    assert said.code == 3
    assert "fleet.yml:4:11: error ORCH118: backend oci is not supported by this version" in said.err
    assert f"hint: {hint}\n" in said.err
    assert "backend: local" not in said.err


def test_a_stranger_s_file_is_told_of_those_of_its_own_repository(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lab\nbackends: [{type: aws}]\n")
    file = folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 2\nbackends: [oci]\n")
    said = folder.orch("preview", "--untrusted", file)
    assert said.code == 3
    assert "hint: use `aws`, which `orch.yml` configures\n" in said.err


def test_a_name_without_a_driver_is_told_of_those_with_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    file = folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 2\nbackends: [vultr]\n")
    said = folder.orch("validate", file)
    assert said.code == 3
    assert f"hint: {ANY}\n" in said.err + said.out
