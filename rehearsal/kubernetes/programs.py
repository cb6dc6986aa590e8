"""Finds, downloads or builds the programs of a control plane: etcd, API server, scheduler, controllers.

orch uses the first of: those on PATH of a suitable version; those installed for this user earlier; a download
of the released ones, compared with their published checksums; a build from pinned Go modules.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from orch.spec.errors import ExitCode, OrchError

VERSION = "1.36.3"
ETCD_VERSION = "3.7.3"
"""Debian's etcd 3.4 serves this API server, but lacks what its watches ask for (measured: they are refused
and repeated, and gangs take half a minute)."""

MINIMUM, BELOW = (1, 36), (1, 38)
ETCD_MINIMUM, ETCD_BELOW = (3, 6), (4, 0)
GO_MINIMUM = (1, 26)

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
DOWNLOADS = "https://dl.k8s.io/release/v{version}/bin/linux/{arch}/{name}"
ETCD_DOWNLOADS = "https://github.com/etcd-io/etcd/releases/download/v{version}"
PATIENCE_S = 20.0

Progress = Callable[[str], None]


class ControlPlaneMissing(OrchError):
    """This machine has no programs of a Kubernetes control plane, and none could be installed."""

    exit_code = ExitCode.PROVISION


@dataclass(frozen=True)
class Programs:
    """The programs of a control plane. `origin`: "PATH", "downloaded" or "built"."""

    folder: Mapping[str, Path]
    origin: str

    def __getitem__(self, name: str) -> str:
        return str(self.folder[name])


def home() -> Path:
    """The folder of this user's control planes: `<cache>/orch/kubernetes`, or ORCHCTL_KUBERNETES_HOME."""
    override = os.environ.get("ORCHCTL_KUBERNETES_HOME")
    return Path(override) if override else Path(platformdirs.user_cache_dir("orch")) / "kubernetes"


def find() -> Programs | None:
    """The programs that orch will use; None where one is missing. Does not install."""
    on_path = {name: shutil.which(name) for name in (*SERVERS, "etcd")}
    if all(path is not None and _fits(name, path) for name, path in on_path.items()):
        return Programs({name: Path(str(path)) for name, path in on_path.items()}, "PATH")
    own = {name: _installed() / name for name in (*SERVERS, "etcd")}
    if all(os.access(path, os.X_OK) for path in own.values()):
        origin = _installed() / ".origin"
        return Programs(own, origin.read_text("utf-8") if origin.exists() else "built")
    return None


def install(progress: Progress) -> Programs:
    """The programs, installed first where one is missing. `progress` gets a line for each step.

    Raises ControlPlaneMissing when neither the download nor a build works.
    """
    found = find()
    if found is not None:
        return found
    target = _installed()
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f"{target.name}.building-{os.getpid()}")
    try:
        staging.mkdir()
        progress(f"downloading a Kubernetes control plane {VERSION} …")
        failure = _download(staging)
        if failure is not None:
            shutil.rmtree(staging)
            staging.mkdir()
            progress(
                f"its download is not possible here ({failure}); building it from Go modules "
                "(10 to 25 minutes) …"
            )
            _build(staging, progress)
        (staging / ".origin").write_text("built" if failure else "downloaded", "utf-8")
        if not target.exists():  # else another process was faster
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    found = find()
    assert found is not None
    return found


def _installed() -> Path:
    return home() / f"{VERSION}-etcd-{ETCD_VERSION}"


def _fits(name: str, path: str) -> bool:
    stat = os.stat(path)
    version = _version_of(path, stat.st_mtime_ns, stat.st_size)
    low, high = (ETCD_MINIMUM, ETCD_BELOW) if name == "etcd" else (MINIMUM, BELOW)
    return version is not None and low <= version < high


@functools.lru_cache(maxsize=8)
def _version_of(path: str, mtime_ns: int, size: int) -> tuple[int, int] | None:
    """The version that a program tells of itself; `mtime_ns` and `size` tell one file from the next."""
    del mtime_ns, size
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\d+)\.(\d+)\.\d+", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _download(folder: Path) -> str | None:
    """Download all programs into a folder; returns None on success, else the reason of the failure."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    try:
        for name in SERVERS:
            url = DOWNLOADS.format(version=VERSION, arch=arch, name=name)
            content = _get(url)
            _compare(name, content, _get(f"{url}.sha256").decode().split()[0])
            _write(folder / name, content)
        base, archive = (
            ETCD_DOWNLOADS.format(version=ETCD_VERSION),
            f"etcd-v{ETCD_VERSION}-linux-{arch}.tar.gz",
        )
        sums = {line.split()[1]: line.split()[0] for line in _get(f"{base}/SHA256SUMS").decode().splitlines()}
        content = _get(f"{base}/{archive}")
        _compare(archive, content, sums[archive])
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            member = tar.extractfile(f"{archive.removesuffix('.tar.gz')}/etcd")
            assert member is not None
            _write(folder / "etcd", member.read())
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        reason = getattr(error, "reason", error)
        return str(reason).strip() or type(error).__name__
    return None


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def _compare(name: str, content: bytes, published: str) -> None:
    if hashlib.sha256(content).hexdigest() != published:
        raise ValueError(f"{name} does not have its published checksum")


def _write(target: Path, content: bytes) -> None:
    target.write_bytes(content)
    target.chmod(0o755)


def _build(folder: Path, progress: Progress) -> None:
    go = _go_or_refuse()
    major, minor, _ = VERSION.split(".")
    at = "-X k8s.io/component-base/version"
    flags = f"-s -w {at}.gitVersion=v{VERSION} {at}.gitMajor={major} {at}.gitMinor={minor}"
    progress("  1/2 API server, scheduler, controllers (downloads about 100 modules, then compiles)")
    servers = folder / "servers"
    _server_module(go, servers)
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in SERVERS]
    _go(go, ["build", "-trimpath", "-ldflags", flags, "-o", f"{folder}{os.sep}", *packages], servers)
    progress("  2/2 etcd")
    etcd = folder / "store"
    etcd.mkdir()
    (etcd / "go.mod").write_text(
        f"module orch.kubernetes/store\n\ngo {GO_MINIMUM[0]}.{GO_MINIMUM[1]}\n\n"
        f"require go.etcd.io/etcd/server/v3 v{ETCD_VERSION}\n",
        "utf-8",
    )
    _go(
        go,
        ["build", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / "etcd"), "go.etcd.io/etcd/server/v3"],
        etcd,
    )
    shutil.rmtree(servers)
    shutil.rmtree(etcd)


def _server_module(go: str, folder: Path) -> None:
    """A module that requires Kubernetes. Go ignores the `replace` lines of a required module, which say where
    its parts are, so ours has them, with the released versions."""
    folder.mkdir()
    (folder / "go.mod").write_text("module orch.kubernetes/servers\n", "utf-8")
    answer = json.loads(_go(go, ["mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"], folder))
    text = Path(answer["GoMod"]).read_text("utf-8")
    parts = sorted(set(re.findall(r"=> \./staging/src/(k8s\.io/[\w-]+)", text)))
    directives = re.findall(r"^(?:go|godebug) .*$", text, re.MULTILINE)
    released = f"v0.{VERSION.partition('.')[2]}"
    lines = [
        "module orch.kubernetes/servers",
        *directives,
        f"require k8s.io/kubernetes v{VERSION}",
        *(f"replace {part} => {part} {released}" for part in parts),
    ]
    (folder / "go.mod").write_text("\n\n".join(lines) + "\n", "utf-8")


def _go_or_refuse() -> str:
    go = shutil.which("go")
    answer = (
        subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        if go
        else ""
    )
    match = re.match(r"go(\d+)\.(\d+)", answer)
    needed = f"{GO_MINIMUM[0]}.{GO_MINIMUM[1]}"
    if go is None or match is None or (int(match[1]), int(match[2])) < GO_MINIMUM:
        raise ControlPlaneMissing(
            "a Kubernetes control plane can neither be downloaded nor built here",
            detail="the download failed, and "
            + ("there is no Go" if match is None else f"Go {match[1]}.{match[2]} is older than {needed}"),
            hint=f"put {', '.join(SERVERS)} {MINIMUM[0]}.{MINIMUM[1]} and etcd on PATH, or install "
            f"Go >= {needed}",
        )
    return go


def _go(go: str, words: Sequence[str], folder: Path) -> str:
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    result = subprocess.run(
        [go, *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ControlPlaneMissing(
            f"building the control plane failed at `go {' '.join(words[:2])}`",
            detail="\n".join(result.stderr.strip().splitlines()[-5:]),
            hint=f"see that the Go module proxy can be reached, or put {', '.join(SERVERS)} and etcd on PATH",
        )
    return result.stdout
