"""A simulated GCP account, and the shortest way to have something in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.rehearsal.gcp.account import GcpCloud

Doc = dict[str, Any]
PROJECT = "projects/orch-rehearsal"
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"
ARM = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts-arm64"


class Refused(Exception):
    """A call's HTTP error, or the error of its operation."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


@dataclass
class Project:
    """A project with one network and a subnetwork in us-central1; `launch` starts instances there."""

    cloud: GcpCloud
    zone: str = "us-central1-b"

    def call(self, method: str, path: str, body: Doc | None = None, **params: Any) -> Doc:
        """Ask, relative to the project. Raises Refused."""
        status, answer = self.cloud.request(method, f"{PROJECT}/{path}", params, body)
        if status != 200:
            (error,) = answer["error"]["errors"]
            raise Refused(status, error["reason"], error["message"])
        for error in (answer.get("error") or {}).get("errors") or ():
            raise Refused(answer["httpErrorStatusCode"], error["code"], error["message"])
        return answer

    def network(self, name: str = "net", **more: Any) -> str:
        body = {"name": name, "autoCreateSubnetworks": False, **more}
        self.call("POST", "global/networks", body)
        return f"{PROJECT}/global/networks/{name}"

    def subnet(
        self, name: str, network: str, cidr: str | None, region: str = "us-central1", **more: Any
    ) -> str:
        body = {"name": name, "network": network, **({"ipCidrRange": cidr} if cidr else {}), **more}
        self.call("POST", f"regions/{region}/subnetworks", body)
        return f"{PROJECT}/regions/{region}/subnetworks/{name}"

    def nets(self, count: int, *, first: int = 0, **more: Any) -> list[str]:
        """Subnetworks, each in a network of its own."""
        numbers = range(first, first + count)
        return [self.subnet(f"s{n}", self.network(f"n{n}", **more), f"10.{n}.0.0/16") for n in numbers]

    def roce(self, zone: str = "us-central1-b", count: int = 8, name: str = "rdma") -> list[str]:
        """Subnetworks of a network with the RoCE profile of a zone."""
        profile = f"{PROJECT}/global/networkProfiles/{zone}-vpc-roce"
        network = self.network(name, networkProfile=profile)
        region = zone.rpartition("-")[0]
        return [self.subnet(f"{name}-{n}", network, f"192.168.{n}.0/24", region) for n in range(count)]

    def body(self, name: str, machine: str, nics: list[Doc], **more: Any) -> Doc:
        """An instance as `insert` takes it."""
        arm = machine.startswith("a4x")
        dense = machine.startswith(("a3-ultra", "a4"))
        params = {
            "sourceImage": ARM if arm else UBUNTU,
            "diskType": f"zones/{self.zone}/diskTypes/{'hyperdisk-balanced' if dense else 'pd-balanced'}",
        }
        body = {
            "name": name,
            "machineType": f"zones/{self.zone}/machineTypes/{machine}",
            "networkInterfaces": nics,
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        }
        if not machine.startswith(("e2", "n2")):
            body["scheduling"] = {"onHostMaintenance": "TERMINATE"}
        return {**body, **more}

    def launch(
        self, name: str, machine: str = "e2-medium", nics: list[Doc] | None = None, **more: Any
    ) -> str:
        """Start an instance; its path."""
        if nics is None:
            nics = [{"subnetwork": f"{PROJECT}/regions/{self.zone.rpartition('-')[0]}/subnetworks/main"}]
        self.call("POST", f"zones/{self.zone}/instances", self.body(name, machine, nics, **more))
        return f"{PROJECT}/zones/{self.zone}/instances/{name}"

    def ultra(self, hosts: list[str], rdma: list[str]) -> list[Doc]:
        """The interfaces of A3 Ultra and A4."""
        found: list[Doc] = [{"subnetwork": one, "nicType": "GVNIC"} for one in hosts]
        return found + [{"subnetwork": one, "nicType": "MRDMA"} for one in rdma]

    def policy(self, name: str = "compact", **group: Any) -> str:
        body = {"name": name, "groupPlacementPolicy": {"collocation": "COLLOCATED", **group}}
        self.call("POST", "regions/us-central1/resourcePolicies", body)
        return f"{PROJECT}/regions/us-central1/resourcePolicies/{name}"

    def template(self, name: str, machine: str, nics: list[Doc], **more: Any) -> str:
        properties = self.body(name, machine, nics, **more)
        properties.pop("name")
        properties["machineType"] = machine
        for disk in properties["disks"]:
            disk["initializeParams"]["diskType"] = disk["initializeParams"]["diskType"].rpartition("/")[2]
        self.call("POST", "global/instanceTemplates", {"name": name, "properties": properties})
        doc = self.call("GET", f"global/instanceTemplates/{name}")
        return f"{doc['selfLink']}?uniqueId={doc['id']}"

    def group(self, name: str, template: str, size: int = 0, **more: Any) -> str:
        body = {
            "name": name,
            "baseInstanceName": name,
            "versions": [{"instanceTemplate": template}],
            "targetSize": size,
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            **more,
        }
        self.call("POST", f"zones/{self.zone}/instanceGroupManagers", body)
        return f"zones/{self.zone}/instanceGroupManagers/{name}"


@pytest.fixture
def cloud(tmp_path: Path) -> GcpCloud:
    return GcpCloud.create(tmp_path / "gcp.db")


@pytest.fixture
def bare(cloud: GcpCloud) -> Project:
    """A project with nothing in it."""
    return Project(cloud)


@pytest.fixture
def project(bare: Project) -> Project:
    bare.subnet("main", bare.network("main"), "10.200.0.0/20")
    return bare


@pytest.fixture
def refused() -> Callable[..., Refused]:
    """What a call is refused with."""

    def call(function: Callable[..., Any], *words: Any, **more: Any) -> Refused:
        with pytest.raises(Refused) as caught:
            function(*words, **more)
        return caught.value

    return call
