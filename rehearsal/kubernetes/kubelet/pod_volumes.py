"""The volumes of a pod as Docker mounts them: folders of this machine, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch.rehearsal.kubernetes.api import Doc
from orch.rehearsal.kubernetes.kubelet.containers import CannotStart, contents, field_of, quantity
from orch.rehearsal.kubernetes.kubelet.machine import LABEL, Machine


class PodVolumes:
    """Those of one pod. `folder`: where files of the pod are made."""

    def __init__(self, machine: Machine, pod: Doc, ip: str, folder: Path) -> None:
        self._machine, self._pod, self._ip, self._folder = machine, pod, ip, folder
        self._uid: str = pod["metadata"]["uid"]

    def sources(self, container: Doc) -> dict[str, Doc]:
        """Docker's source of each volume that a container mounts. Raises CannotStart."""
        used = {mount["name"] for mount in container.get("volumeMounts", ())}
        rows = [row for row in self._pod["spec"].get("volumes", ()) if row["name"] in used]
        return {row["name"]: self._source(row) for row in rows}

    def _source(self, row: Doc) -> Doc:
        name, folder = row["name"], self._folder / row["name"]
        if "emptyDir" in row:
            empty = row["emptyDir"] or {}
            if empty.get("medium") != "Memory":
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o777)
                return {"Type": "bind", "Source": str(folder)}
            volume = f"orch-k8s-{self._uid}-{name}"
            size = int(quantity(empty.get("sizeLimit", "64Gi")))
            options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size}"}
            self._machine.docker.volumes.create(
                volume, driver_opts=options, labels={LABEL: self._machine.cluster, f"{LABEL}.pod": self._uid}
            )
            return {"Type": "volume", "Source": volume}
        if "hostPath" in row:
            path = Path(row["hostPath"]["path"])
            if row["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                raise CannotStart("CreateContainerError", f"hostPath {path} does not exist")
            return {"Type": "bind", "Source": str(path)}
        if "persistentVolumeClaim" in row:
            return self._claim(row["persistentVolumeClaim"])
        files = dict(self._files(row))
        folder.mkdir(parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
        return {"Type": "bind", "Source": str(folder), "ReadOnly": True}

    def _claim(self, reference: Doc) -> Doc:
        claim = self._machine.lookup(self._pod, "persistentvolumeclaims", reference["claimName"])
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise CannotStart("ContainerCreating", f"claim {reference['claimName']} is not bound")
        volume = self._machine.api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        path = Path(volume["spec"]["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)
        return {"Type": "bind", "Source": str(path), "ReadOnly": bool(reference.get("readOnly"))}

    def _files(self, row: Doc) -> Iterator[tuple[str, tuple[bytes, int]]]:
        """Files of a volume that is made of documents, by path. Raises CannotStart."""
        if "projected" in row:
            mode = row["projected"].get("defaultMode", 0o644)
            for source in row["projected"].get("sources", ()):
                if "serviceAccountToken" in source:
                    yield (
                        source["serviceAccountToken"]["path"],
                        (self._token(source["serviceAccountToken"]), mode),
                    )
                else:
                    yield from self._files({**source, "mode": mode})
            return
        for kind, plural in (("configMap", "configmaps"), ("secret", "secrets")):
            if kind not in row:
                continue
            source = row[kind]
            name = source.get("name") or source.get("secretName")
            document = self._machine.lookup(self._pod, plural, name)
            if document is None:
                if source.get("optional"):
                    return
                raise CannotStart(
                    "ContainerCreating", f'MountVolume.SetUp failed: {plural[:-1]} "{name}" not found'
                )
            mode = source.get("defaultMode", row.get("mode", 0o644))
            data = contents(plural, document)
            items: list[Doc] = source.get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                yield item["path"], (data[item["key"]], item.get("mode", mode))
            return
        if "downwardAPI" in row:
            for item in row["downwardAPI"].get("items", ()):
                text = field_of(self._pod, item["fieldRef"]["fieldPath"], self._ip)
                yield item["path"], (text.encode(), row.get("mode", 0o644))
            return
        raise CannotStart("RehearsalFailed", f"a rehearsed node does not know the volume {row}")

    def _token(self, source: Doc) -> bytes:
        account = self._pod["spec"].get("serviceAccountName", "default")
        namespace = self._pod["metadata"]["namespace"]
        request = {"spec": {"audiences": [source["audience"]] if "audience" in source else []}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self._machine.api.create(path, request)["status"]["token"]).encode()
