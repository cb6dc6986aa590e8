"""A folder in which scripts for nodes run for real: their absolute paths are moved there, and commands only
write down how they were called.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOOLS = """
sh bash mkdir rm cat sed grep tr ln readlink chmod touch sort tar date find cut head tail dirname basename cp
mv mktemp ls tee wc awk env nohup setsid rmdir cmp printenv uname id
"""
STUBS = """
docker canary timeout install systemctl apt-get curl gpg sysctl modprobe modinfo mount umount mountpoint
nvidia-smi nvidia-ctk lsblk mdadm wipefs blkid mkfs.xfs mkfs.ext4 vgs vgremove xargs iptables cos-extensions
getent sleep mpirun ssh sshd stat flock python3 perl socat nc ping ip job df kill lspci dcgmi hl-smi tt-smi
amd-smi rocm-smi nproc ip6tables iptables-restore runuser
"""
FOLDERS = "calls work tmp etc/ssh run/orch/state run/sshd var/lib/orch/runs"
MOVED = re.compile(r"(?<![\w./-])/(?=(?:var|etc|usr|run|opt|mnt|sys|lib|tmp)/)")
EXITS = {"docker": "case $1 in inspect) echo 'No such object' >&2; exit 1;; esac", "modinfo": "exit 0"}


@cache
def commands() -> Path:
    """A folder with all of them. A stub writes into the sandbox whose `bin` it was found in."""
    folder = Path(tempfile.mkdtemp(prefix="orch-sandbox-"))
    atexit.register(shutil.rmtree, folder)
    for tool in TOOLS.split():
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    for stub in STUBS.split():
        path = folder / stub
        path.write_text(
            "#!/bin/sh\nat=${0%/bin/*}/calls/$$\n"
            'printf \'%s\\0\' "${0##*/}" "$@" >> "$at"\n'
            f"printf '\\n\\0' >> \"$at\"\n{EXITS.get(stub, '')}\n"
        )
        path.chmod(0o755)
    return folder


@dataclass(frozen=True)
class Sandbox:
    """A folder whose `bin` has all commands that can be found."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Sandbox:
        """In an empty folder."""
        for name in FOLDERS.split():
            (folder / name).mkdir(parents=True)
        (folder / "bin").symlink_to(commands())
        (folder / "etc/ssh/sshd_config").write_text("")
        for name, text in {"env": "export FROM_ENV=1\n", "go": ":\n", "image-command": "job\n"}.items():
            (folder / "run/orch" / name).write_text(text)
        return cls(folder)

    def run(self, text: str, shell: str, *args: str) -> subprocess.CompletedProcess[bytes]:
        """`text` with its paths moved into the folder."""
        script = self.folder / "script"
        script.write_text(MOVED.sub(f"{self.folder}/", text), newline="")
        return subprocess.run(
            [shell, str(script), *args],
            cwd=self.folder / "work",
            env={"PATH": str(self.folder / "bin"), "HOME": str(self.folder / "work"), "ORCH_NODE_RANK": "0"},
            input=bytes(10240),  # an archive without members
            capture_output=True,
            timeout=120,
            check=False,
        )

    def calls(self) -> list[tuple[str, ...]]:
        """Name and arguments of every command that was called."""
        found: list[tuple[str, ...]] = []
        for file in (self.folder / "calls").iterdir():
            for call in file.read_bytes().decode(errors="surrogateescape").split("\0\n\0")[:-1]:
                found.append(tuple(call.split("\0")))
        return found
