"""A whole cluster on this machine as one process: control plane, kubelet, what an administrator installs.

    python -m orch.rehearsal.kubernetes FOLDER

`cluster.yml` of the folder says what nodes there are. The process holds a lock on the folder's `lock` while
it runs; `run/admin.kubeconfig` leads to it, and `ready` of the folder has its process number once it answers.
What it started ends with it. It ends by itself when its folder is gone, and a rehearsal's (`used` of the
folder) also a quarter of an hour after its last use, unless something of orch is in the cluster.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orch.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneFailed
from orch.spec.install import install_hint

if TYPE_CHECKING:
    from orch.rehearsal.kubernetes.api import Api

STARTS_WITHIN_S = 240.0
MANAGED = "app.kubernetes.io/managed-by=orch"
_OF_FLEETS = (
    "/api/v1/namespaces",
    "/api/v1/serviceaccounts",
    "/api/v1/persistentvolumeclaims",
    "/apis/batch/v1/jobs",
)
UNUSED_S, LOOK_EVERY_S = 900.0, 30.0


@dataclass(frozen=True)
class RehearsedCluster:
    """A cluster of a folder. `kubeconfig` leads to it while it runs."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "run" / "admin.kubeconfig"

    @property
    def name(self) -> str:
        """What its containers, volumes and network are called after."""
        return hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]

    def running(self) -> bool:
        """Whether its process runs and has said that it is ready."""
        if not (self.folder / "ready").exists():
            return False
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def use(self) -> None:
        """Start it where it does not run, and have it end when nobody has used it for a while."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "used").touch()
        self.start()

    def start(self) -> None:
        """Start it where it does not run, and wait until it answers. Raises ControlPlaneFailed."""
        if self.running():
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (self.folder / "ready").unlink()
        with (self.folder / "service.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", __package__ or "", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ends = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < ends:
            if (self.folder / "ready").exists():
                return
            if process.poll() is not None:
                if self.running():  # another one was faster
                    return
                break
            time.sleep(0.1)
        log_text = (self.folder / "service.log").read_text("utf-8", "replace")
        raise ControlPlaneFailed(
            "the rehearsed Kubernetes cluster does not start", detail="\n".join(log_text.splitlines()[-8:])
        )

    def stop(self) -> None:
        """End it, and wait until it has removed its containers."""
        if not self.running():
            return
        process = int((self.folder / "ready").read_text("utf-8"))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def ask(self, verb: str, **words: Any) -> None:
        """Have the cluster do what happens to clusters: `lose`, `find_again`, `evict`, `add`, `remove`."""
        request = self.folder / "requests" / f"{time.time_ns()}.json"
        request.parent.mkdir(exist_ok=True)
        whole = request.with_suffix(".part")
        whole.write_text(json.dumps({"verb": verb, **words}), "utf-8")
        whole.rename(request)
        while request.exists() and self.running():
            time.sleep(0.05)


def serve(folder: Path) -> None:
    """Run the cluster of a folder until SIGTERM."""
    from orch.images.client import connect
    from orch.rehearsal.kubernetes.api import Api
    from orch.rehearsal.kubernetes.controllers.jobset import JobSets
    from orch.rehearsal.kubernetes.controllers.kueue import Kueue
    from orch.rehearsal.kubernetes.controllers.volumes import Volumes
    from orch.rehearsal.kubernetes.kubelet.kubelet import Kubelet
    from orch.rehearsal.kubernetes.kubelet.machine import LABEL, Machine
    from orch.rehearsal.kubernetes.kubelet.nodes import Nodes, NodeSpec
    from orch.rehearsal.kubernetes.kubelet.server import serve as listen
    from orch.rehearsal.kubernetes.programs import install

    until = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: until.set())
    cluster = RehearsedCluster(folder)
    settings = read_settings(folder)
    with _only_one(folder):
        docker = connect()
        plane = ControlPlane(install(print), folder / "run", gangs=bool(settings.get("gangs")))
        where = plane.start()
        api = Api(plane.kubeconfig)
        network = docker.networks.create(
            f"orch-k8s-{cluster.name}", driver="bridge", labels={LABEL: cluster.name}
        )
        machine = Machine(api, docker, cluster.name, str(network.name), "orch/base:bookworm", folder / "run")
        nodes = Nodes(api, where.port, until)
        kubelet = Kubelet(machine, nodes, until)
        kubelet.stop()
        server = listen(kubelet, docker, where)
        try:
            nodes.register(NodeSpec.of(row) for row in settings.get("nodes", ()))
            volumes = Volumes(api, folder / "run" / "volumes", until)
            volumes.install()
            work: list[Callable[[], object]] = [
                nodes.keep_alive,
                kubelet.watch,
                volumes.claims,
                volumes.volumes,
            ]
            installed = settings.get("install", ())
            if "jobset" in installed or "kueue" in installed:
                sets = JobSets(api, until)
                sets.install()
                work += [sets.watch_sets, sets.watch_jobs, sets.reconcile]
            if "kueue" in installed:
                queues = Kueue(api, until, ready_within_s=settings.get("pods_ready_within_s"))
                queues.install()
                work += [queues.schedule, *(partial(queues.watch, path) for path in queues.paths())]
            for each in work:
                threading.Thread(target=each, daemon=True).start()
            (folder / "ready").write_text(str(os.getpid()), "utf-8")
            looked = time.monotonic()
            while not until.wait(0.1):
                if time.monotonic() - looked >= LOOK_EVERY_S:
                    if _unused(folder, api):
                        break
                    looked = time.monotonic()
                if (ended := plane.ended()) is not None:
                    raise ControlPlaneFailed("the control plane broke", detail=ended)
                for request in sorted((folder / "requests").glob("*.json")):
                    try:
                        _do(json.loads(request.read_text("utf-8")), kubelet, nodes)
                    except KeyError as missing:
                        print(f"{request.name} is not done: it does not say {missing}", flush=True)
                    request.unlink()
        finally:
            (folder / "ready").unlink(missing_ok=True)
            until.set()
            server.shutdown()
            plane.stop()
            kubelet.stop()
            network.remove()


def _unused(folder: Path, api: Api) -> bool:
    """Whether nobody needs the cluster of a folder any more."""
    from orch.rehearsal.kubernetes.api import ApiError

    if not (folder / "lock").exists():
        return True
    used = folder / "used"
    if not used.exists() or time.time() - used.stat().st_mtime < UNUSED_S:
        return False
    try:
        return not any(api.items(path, labelSelector=MANAGED) for path in _OF_FLEETS)
    except ApiError:
        return False


def read_settings(folder: Path) -> Mapping[str, Any]:
    """`cluster.yml`: `nodes`, a list of `name`, `capacity`, `labels`, `taints`; `gangs`: the scheduler's own;
    `install`: `jobset`, `kueue` (which comes with it), whose `pods_ready_within_s` is waitForPodsReady's."""
    path = folder / "cluster.yml"
    return yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}


def _do(request: Mapping[str, Any], kubelet: Any, nodes: Any) -> None:
    from orch.rehearsal.kubernetes.kubelet.nodes import NodeSpec

    verb = request["verb"]
    if verb == "lose":
        kubelet.lose(request["node"])
    elif verb == "find_again":
        kubelet.find_again(request["node"])
    elif verb == "evict":
        kubelet.evict(request["namespace"], request["pod"], request["message"])
    elif verb == "add":
        nodes.register([NodeSpec.of(row) for row in request["nodes"]])
    elif verb == "remove":
        nodes.unregister(request["node"])


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("the cluster of this folder runs already")
        yield


def main(words: Sequence[str]) -> None:
    if list(words) == ["--install"]:
        from orch.rehearsal.kubernetes.programs import install

        install(lambda line: print(line, flush=True))
        return
    if len(words) != 1 or words[0].startswith("-"):
        sys.exit("usage: python -m orch.rehearsal.kubernetes FOLDER | --install")
    try:
        import docker as _docker  # noqa: F401
        import wsproto as _wsproto  # noqa: F401
    except ImportError as error:
        sys.exit(f"{error.name} is not installed: {install_hint('kubernetes')}")
    serve(Path(words[0]).resolve())
