"""A real registry that asks for a password, on a node's own loopback: Docker takes no certificate there."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bcrypt
from kit.nodes.nodelab import docker, wait_until
from platformdirs import user_cache_path

from orch.images.base import ensure_base

ADDRESS = "127.0.0.1:5000"
APP = f"{ADDRESS}/team/app:1"
# What a job's first program calls, from one static file.
_APPLETS = (
    "sh",
    "sleep",
    "mkdir",
    "mktemp",
    "cat",
    "cp",
    "dirname",
    "echo",
    "printf",
    "sha256sum",
    "cut",
    "test",
)
_CONFIG = f"""\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: /var/lib/registry}}}}
http: {{addr: "{ADDRESS}"}}
auth: {{htpasswd: {{realm: tests, path: /registry/htpasswd}}}}
"""


def registry_image() -> str:
    """An image with Debian's registry and a static busybox, built once on a machine."""
    with tempfile.NamedTemporaryFile() as log:
        base = ensure_base(Path(log.name), print)
    recipe = (
        f"FROM {base}\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends docker-registry busybox-static "
        "&& apt-get clean && rm -rf /var/lib/apt/lists/*\n"
    )
    tag = f"orch-test/registry:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with (user_cache_path("orch", ensure_exists=True) / "test-registry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not docker("images", "-q", tag):
            docker("build", "-q", "-t", tag, "-", data=recipe.encode())
    return tag


@dataclass(frozen=True)
class Registry:
    """A registry on the loopback of a node, with the image `APP`, which the node itself does not have."""

    node: str
    container: str

    def forget(self) -> None:
        """Remove the image from the node, as before the first pull."""
        docker("exec", self.node, "docker", "image", "rm", "-f", APP, check=False)


@contextmanager
def registry(node: str, user: str, password: str) -> Iterator[Registry]:
    """A registry for the containers of a node."""
    image, name = registry_image(), f"registry-{node}"
    users = f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"
    serve = ("docker-registry", "serve", "/registry/config.yml")
    docker("create", "--name", name, "--network", f"container:{node}", image, *serve)
    try:
        docker(
            "cp", "-", f"{name}:/", data=_tar({"registry/config.yml": _CONFIG, "registry/htpasswd": users})
        )
        docker("start", name)
        busybox = subprocess.run(
            ["docker", "exec", name, "cat", "/bin/busybox"], capture_output=True, check=True
        ).stdout
        docker("exec", "-i", node, "docker", "import", "-", APP, data=_root(busybox))
        _push(node, user, password)
        found = Registry(node, name)
        found.forget()
        yield found
        found.forget()
    finally:
        docker("rm", "-f", "-v", name)


def _push(node: str, user: str, password: str) -> None:
    """Push as a person would, with a configuration that goes again."""
    import base64

    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    login = json.dumps({"auths": {ADDRESS: {"auth": auth}}}).encode()
    script = (
        "d=$(mktemp -d /dev/shm/push.XXXX) && cat > $d/config.json && "
        f"docker --config $d push -q {APP}; code=$?; rm -rf $d; exit $code"
    )

    def pushed() -> bool:
        done = subprocess.run(
            ["docker", "exec", "-i", node, "sh", "-c", script], input=login, capture_output=True, check=False
        )
        return done.returncode == 0

    wait_until(pushed)  # the registry may not listen yet


def _root(busybox: bytes) -> bytes:
    """The root of a small image."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "tmp", "run"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(member)
        _add(archive, "bin/busybox", busybox, 0o755)
        for applet in _APPLETS:
            member = tarfile.TarInfo(f"bin/{applet}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(member)
    return buffer.getvalue()


def _tar(texts: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in texts.items():
            _add(archive, name, text.encode(), 0o644)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
