"""A cluster in memory, behind a KubeServer: namespaces, service accounts, claims, and one node."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from kit.kubernetes.kubeserver import Answer, Call, Doc, KubeServer, kube_server, status

SYSTEM = "/api/v1/namespaces/kube-system"
BEGINNING: dict[str, Doc] = {
    "/api/v1/nodes/cpu-0": {
        "metadata": {"name": "cpu-0", "labels": {"kubernetes.io/hostname": "cpu-0"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    },
    "/api/v1/namespaces/lab": {"metadata": {"name": "lab"}},
    "/apis/storage.k8s.io/v1/storageclasses/fast": {
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "allowVolumeExpansion": True,
    },
}


class MemoryCluster:
    """The `answer` of a KubeServer. `uid`: of the namespace kube-system, None for a user who may not read it;
    `objects`: by their path; `changes`: method and path of each call that changed something."""

    def __init__(self, uid: str | None) -> None:
        self.uid = uid
        self.objects = copy.deepcopy(BEGINNING)
        self.changes: list[tuple[str, str]] = []

    @property
    def made(self) -> list[str]:
        """The paths of objects that the cluster did not begin with."""
        return sorted(self.objects.keys() - BEGINNING.keys())

    def __call__(self, call: Call) -> Answer:
        path, name = call.path, call.path.rpartition("/")[2]
        if path == SYSTEM:
            if self.uid is None:
                return status(403, "Forbidden", "you may not")
            return Answer({"metadata": {"name": name, "uid": self.uid}})
        if call.method == "POST":  # a review of rights, and a pod that is tried
            return Answer({**call.document, "status": {"allowed": True}})
        if path in ("/version", "/apis"):
            return Answer({"gitVersion": "v1.36.0", "groups": []})
        if call.method in ("PATCH", "DELETE"):
            self.changes.append((call.method, path))
        if call.method == "PATCH":
            given, known = yaml.safe_load(call.body), self.objects.get(path, {"metadata": {}})
            meta = {"uid": f"{self.uid}{path}", **known["metadata"], **given["metadata"]}
            self.objects[path] = {**known, **given, "metadata": meta}
            return Answer(self.objects[path])
        if path in self.objects:
            return Answer(self.objects.pop(path) if call.method == "DELETE" else self.objects[path])
        rows = [each for key, each in self.objects.items() if key.rpartition("/")[0] == path]
        if rows or name.endswith("s"):
            return Answer({"items": rows, "metadata": {}})
        return status(404, "NotFound", "not found", name=name)


class Served(MemoryCluster):
    """A cluster with its server."""

    def __init__(self, uid: str | None, server: KubeServer) -> None:
        super().__init__(uid)
        self.server, server.answer = server, self

    def lead(self, kubeconfig: Path) -> None:
        """Have the context `lab` of a kubeconfig lead here."""
        kubeconfig.write_text(self.server.kubeconfig().read_text())


@contextmanager
def clusters(folder: Path, *uids: str | None) -> Iterator[list[Served]]:
    """Serve a cluster for each UID, at an address and with an authority of its own."""
    with ExitStack() as stack:
        places = [folder / f"cluster-{at}" for at in range(len(uids))]
        for each in places:
            each.mkdir()
        servers = [stack.enter_context(kube_server(each)) for each in places]
        yield [Served(uid, server) for uid, server in zip(uids, servers, strict=True)]
