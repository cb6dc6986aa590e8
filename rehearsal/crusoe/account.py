"""One simulated Crusoe project, with an access key."""

from __future__ import annotations

import hashlib
import hmac
import io
import re
import tarfile
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import datetime
from types import ModuleType
from typing import ClassVar

import yaml

from orch.rehearsal.account import SimulationError
from orch.rehearsal.crusoe.api import errors
from orch.rehearsal.crusoe.api.errors import bad_credential
from orch.rehearsal.crusoe.api.instances import ended
from orch.rehearsal.crusoe.api.routes import PROJECT, matching
from orch.rehearsal.crusoe.data.tables import kinds
from orch.rehearsal.http_service import HttpAccount, Request, Route
from orch.rehearsal.machines import SimulatedMachine, device_files
from orch.rehearsal.store import Doc

KINDS = ("network", "subnet", "firewall-rule", "ib-partition", "disk", "instance")
SKEW_S = 300.0
"""How far the clock of who signs may be off; Crusoe documents none."""

_AUTHORIZATION = re.compile(r"Bearer 1\.0:(?P<key>[^:]+):(?P<signature>[A-Za-z0-9_-]+)")
_HEREDOC = re.compile(r"<<'(\w+)' \| tar [^\n]*\n(.*?)\n\1\n", re.DOTALL)
_HOSTNAME = re.compile(r"^hostnamectl set-hostname (\S+)$", re.MULTILINE)


class CrusoeCloud(HttpAccount):
    """A Crusoe project in a file. Knobs: capacity of `TYPE@INFINIBAND NETWORK` or `TYPE@LOCATION` in VMs;
    quotas by a family of types, in GPUs."""

    name: ClassVar[str] = "crusoe"
    hidden: ClassVar[frozenset[str]] = frozenset({"startup_script"})
    errors: ClassVar[ModuleType] = errors
    shows_instances: ClassVar[frozenset[str]] = frozenset({"list instance", "get instance"})

    @property
    def project(self) -> str:
        return self.identity(PROJECT)

    @property
    def access_key(self) -> str:
        return f"AK{self.seed}REHEARSAL"

    @property
    def secret_key(self) -> str:
        secret = hashlib.sha256(f"{self.seed} secret".encode()).digest()
        return urlsafe_b64encode(secret).decode().rstrip("=")

    # -- calls --------------------------------------------------------------------------------------------

    def route_of(self, method: str, path: str) -> tuple[Route, str]:
        return matching(method, path, self.project)

    def check_caller(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        """Source: crusoecloud/client-go auth/v1/auth.go. The query is signed as it is sent."""
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        stamp = headers.get("x-crusoe-timestamp", "")
        if found is None:
            raise bad_credential("the request is not signed")
        if found["key"] != self.access_key:
            raise bad_credential("the access key is not known")
        try:
            at = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
        except ValueError:
            raise bad_credential("the timestamp does not read") from None
        if self.knobs_now().clock is None and abs(at - self.now()) > SKEW_S:
            raise bad_credential("the timestamp is too old")
        secret = urlsafe_b64decode(self.secret_key + "=" * (-len(self.secret_key) % 4))
        message = f"{path}\n{query}\n{method}\n{stamp}\n".encode()
        signed = urlsafe_b64encode(hmac.new(secret, message, hashlib.sha256).digest()).decode().rstrip("=")
        if not hmac.compare_digest(signed, found["signature"]):
            raise bad_credential("the signature does not fit")

    # -- behind the back ----------------------------------------------------------------------------------

    def add_reservation(self, name: str, type_name: str, location: str, count: int) -> str:
        """A reservation of `count` VMs of a type, that was bought; its id."""
        from orch.rehearsal.crusoe.api.catalog import add_reservation

        if type_name not in kinds():
            raise SimulationError(f"there is no type {type_name}", hint=f"types: {', '.join(kinds())}")
        with self.store.transaction():
            return add_reservation(Request(self, "", "", {}, None), name, type_name, location, count)

    def shut_down(self, instance: str) -> None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
            if doc is not None:
                ended(Request(self, "", instance, {}, None), doc)

    def lose_host(self, instance: str) -> None:
        """The host of a VM goes down, and the VM with it."""
        self.shut_down(instance)
        self.follow_behind_the_back()

    # -- what a test may ask ------------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        return self.created_resources(KINDS, unless=lambda doc: bool(doc.get("_given") or doc.get("_lacks")))

    # -- local nodes --------------------------------------------------------------------------------------

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
        if doc is None or doc["state"] != "STATE_RUNNING" or not doc["_script"]:
            return None
        kind, cards = kinds()[doc["type"]], 9 if doc["_ib_network"] else 0
        hostname = _HOSTNAME.search(doc["_script"])
        return SimulatedMachine(
            instance=instance,
            slug=instance[:13],
            hostname=hostname[1] if hostname else doc["name"],
            type=kind.name,
            user_data=machine_config(doc["_script"]).encode(),
            placeholders=device_files(kind.gpus, cards),
        )


def machine_config(script: str) -> str:
    """What a startup script makes of a VM, as cloud-config: its files, and the keys among them. The files are
    those of the archive that it unpacks."""
    files: dict[str, str] = {}
    for _, text in _HEREDOC.findall(script):
        data = b64decode(text.replace("\n", ""), validate=True)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for entry in archive:
                content = archive.extractfile(entry)
                if content is not None:
                    files[f"/{entry.name}"] = content.read().decode()
    authorized = files.get("/root/.ssh/authorized_keys", "").splitlines()
    config: Doc = {
        "users": [{"name": "root", "ssh_authorized_keys": authorized}],
        "ssh_keys": {"ed25519_private": files.get("/etc/ssh/ssh_host_ed25519_key", "")},
        "write_files": [{"path": path, "content": content} for path, content in files.items()],
    }
    return "#cloud-config\n" + yaml.safe_dump(config)
