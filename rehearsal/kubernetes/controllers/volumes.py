"""Claims of a rehearsed cluster get volumes: folders of this machine, by the default storage class."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc

CLASS = "rehearsal"
PROVISIONER = "orch.dev/rehearsal"


class Volumes:
    """An external provisioner, as Kubernetes calls it: makes a volume for each claim of its class."""

    def __init__(self, api: Api, folder: Path, until: threading.Event) -> None:
        self._api, self._folder, self._until = api, folder, until

    def install(self) -> None:
        """Make the default storage class."""
        meta = {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        with suppress(ApiError):
            self._api.create(
                "/apis/storage.k8s.io/v1/storageclasses",
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": meta,
                    "provisioner": PROVISIONER,
                    "reclaimPolicy": "Delete",
                },
            )

    def claims(self) -> None:
        """Follow claims."""
        for kind, document in self._api.watch("/api/v1/persistentvolumeclaims", self._until):
            for claim in document["items"] if kind == "SYNC" else [document]:
                if kind != "DELETED":
                    self._provide(claim)

    def volumes(self) -> None:
        """Follow volumes: one whose claim is gone goes, with its folder."""
        for kind, document in self._api.watch("/api/v1/persistentvolumes", self._until):
            for volume in document["items"] if kind == "SYNC" else [document]:
                if kind != "DELETED" and volume.get("status", {}).get("phase") == "Released":
                    self._reclaim(volume)

    def _provide(self, claim: Doc) -> None:
        meta, spec = claim["metadata"], claim["spec"]
        if spec.get("volumeName") or spec.get("storageClassName") != CLASS or meta.get("deletionTimestamp"):
            return
        name = f"pvc-{meta['uid']}"
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": {"path": str(self._folder / name)},
                "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
                | {key: meta[key] for key in ("namespace", "name", "uid")},
            },
        }
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / name).chmod(0o777)
        with suppress(ApiError):
            self._api.create("/api/v1/persistentvolumes", volume)

    def _reclaim(self, volume: Doc) -> None:
        name = volume["metadata"]["name"]
        if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            with suppress(ApiError):
                self._api.remove(f"/api/v1/persistentvolumes/{name}")
            shutil.rmtree(self._folder / name, ignore_errors=True)
