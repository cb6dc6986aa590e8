"""The text of the step that mounts file systems: that of nodes which run must not change."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from orch.runner.preparation.init_steps import steps
from orch.runner.preparation.mounts import CREATED, created_name, mount_script, unmount
from orch.spec.models import Fleet

ATTACHED: list[dict[str, Any]] = [
    {"type": "nfs", "path": "/home", "source": "server:/home", "options": "vers=4"},
    {"type": "efs", "path": "/datasets", "id": "fs-0123456789abcdef0", "read_only": True},
    {
        "type": "fsx-lustre",
        "path": "/fast",
        "source": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh",
    },
    {"type": "filestore", "path": "/models", "source": "10.1.2.2:/share", "optional": True},
    {"type": "host", "path": "/scratch", "source": "/mnt/scratch"},
]


def fleet(*mounts: dict[str, Any]) -> Fleet:
    return Fleet.model_validate({"type": "fleet", "name": "train", "backends": ["aws"], "mounts": mounts})


def test_fleets_that_attach_file_systems_have_the_text_of_the_version_before() -> None:
    (step,) = steps(fleet(*ATTACHED), {})
    # Digests of what the version before file systems were created has rendered.
    assert step.mark == "00.a45c6ce656ce"
    assert sha256(unmount("a").encode()).hexdigest()[:16] == "524dcb25d7fd9db1"


def test_a_created_file_system_is_tried_until_its_name_is_known(tmp_path: Path) -> None:
    """The script runs with a `mount` that fails twice, as for a name that DNS does not know yet."""
    table, sources = tmp_path / "fstab", tmp_path / "sources"
    path = tmp_path / "shared"
    sources.write_text(f"{created_name(str(path))} fs-0.efs.us-east-1.amazonaws.com:/ {path}\n")
    text = mount_script(fleet({"type": "efs", "path": str(path), "create": "true"}).mounts)
    for real, own in (("/etc/fstab", table), (CREATED, sources), ("/run/orch-", tmp_path / "run-")):
        text = text.replace(real, str(own))
    (tmp_path / "00.sh").write_text(
        f"""mount() {{ echo x >> {tmp_path}/tries; [ "$(wc -l < {tmp_path}/tries)" -gt 2 ]; }}
mountpoint() {{ [ -e {tmp_path}/tries ] && [ "$(wc -l < {tmp_path}/tries)" -gt 2 ]; }}
sleep() {{ :; }}
flock() {{ :; }}
mount.nfs4() {{ :; }}
{text}"""
    )
    said = subprocess.run(["bash", str(tmp_path / "00.sh")], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert (tmp_path / "tries").read_text().split() == ["x"] * 3
    assert "fs-0.efs.us-east-1.amazonaws.com:/" in table.read_text()
