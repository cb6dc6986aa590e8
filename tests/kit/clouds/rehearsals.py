"""Fleets as a user brings them up in a rehearsal, and the simulated account's own list as the judge."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from _pytest.mark import ParameterSet
from kit.engine import warm
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, at_work, kill, until

from orch.rehearsal.account import SimulatedAccount
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.lambda_.account import LambdaCloud
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.scenario import Knobs

KIND = "p5.48xlarge"
ZONES = {"a": "use1-az2", "b": "use1-az4", "c": "use1-az6"}
"""Names of the simulated AWS account's zones -> ids."""

H100 = "gpu-h100-sxm_8gpu-128vcpu-1600gb"
"""The type of Nebius with the most fabrics in one region."""

H200 = "h200-141gb-sxm-ib.8x"
"""The type of Crusoe that may be sold without a reservation, in two locations."""

LAMBDA_H100 = "gpu_8x_h100_sxm5"
"""The type of Lambda that is in three regions, of which one has no firewall."""

L4 = "g2-standard-4"
"""The type of GCP that takes the fewest resources."""


def tries(told: str) -> int:
    """How many places were tried; what goes on for long names its place again."""
    return sum(line.startswith("trying ") for line in told.splitlines())


# A hook's command that ends all of an `up` or `down`: the provider, the engine, and who started that. A call
# of a cloud's own library comes from orch itself, whose parent is none of ours.
KILL_ALL = (
    'case "$(tr "\\0" " " < /proc/$ORCH_SIM_PARENT/cmdline)" in '
    '*--non-interactive*) kill -9 $(ps -o ppid= -p $ORCH_SIM_PARENT) "$ORCH_SIM_PARENT" "$ORCH_SIM_PID";; '
    '*) kill -9 "$ORCH_SIM_PID";; esac'
)


def kill_points(often: list[int], soak: list[int]) -> list[ParameterSet]:
    """Calls after which an engine is killed: `often` in each run of the suite, `soak` in `make soak`."""
    return [
        pytest.param(each, marks=() if each in often else pytest.mark.soak)
        for each in sorted([*often, *soak])
    ]


def soaked(rows: Sequence[tuple[str, ...]], often: Collection[int]) -> list[ParameterSet]:
    """Rows of a table, by number: those of `often` in each run of the suite, all in `make soak`."""
    return [
        pytest.param(*row, marks=() if number in often else pytest.mark.soak, id=", ".join(row))
        for number, row in enumerate(rows)
    ]


def few_ranks(task: Path) -> None:
    """Rewrite a task that starts one rank per GPU to two ranks a node."""
    data = yaml.safe_load(task.read_text())
    program, _, args = data["torchrun"].partition(" ")
    data["torchrun"] = {"program": program, "args": args, "nproc_per_node": 2}
    task.write_text(yaml.safe_dump(data))


def stock_nodes(project: Path, image: str) -> None:
    """Have the nodes of a rehearsal of this project hold `orch/IMAGE` from their start."""
    folder = project / ".orch" / "rehearsal"
    folder.mkdir(parents=True)
    (folder / "knobs.yml").write_text(f"nodes: {{image: '{stocked(image)}'}}\n")


@dataclass(frozen=True)
class Rehearsed(Folder):
    """A project whose clouds are simulated, without machines behind the instances.

    What a cloud has is told by a subclass; this one is AWS.
    """

    backend: ClassVar[str] = "aws"
    types: ClassVar[str] = "aws:"
    called: ClassVar[str] = "p5"
    account: ClassVar[type[SimulatedAccount]] = Cloud
    written: ClassVar[dict[str, Any]] = {"regions": ["us-east-1"], "instance_types": [KIND]}

    @classmethod
    def make(cls, path: Path, **knobs: Any) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        (path / "orch.yml").write_text("project: tests\n")
        there = cls(path)
        cls.account.create(there.account_file, knobs=Knobs(**knobs)).store.close()
        return there

    def orch(self, *words: str, env: dict[str, str] | None = None, timeout: float = 300) -> Said:
        started = warm.start(words, self.path, {**os.environ, **(env or {})})
        out, err = started.communicate(timeout)
        return Said(started.returncode or 0, out, err)

    def start(self, *words: str) -> Any:
        return warm.start(words, self.path, os.environ)

    @property
    def account_file(self) -> Path:
        return self.path / ".orch" / "rehearsal" / f"{self.backend}.db"

    @property
    def cloud(self) -> Any:
        return self.account(self.account_file)

    def fleet(self, nodes: object, **more: Any) -> str:
        """The file of a fleet, `called` so or by another `name`."""
        name = str(more.get("name", self.called))
        text = {
            "type": "fleet",
            "name": name,
            "backends": [self.backend],
            "regions": self.written["regions"],
            "placement": "cluster",
            "nodes": nodes,
            **{key: value for key, value in self.written.items() if key != "regions"},
            **more,
        }
        return self.write(f"{name}.yml", yaml.safe_dump(text, sort_keys=False, default_flow_style=None))

    def up(self, file: str | None = None) -> Said:
        return self.orch("up", file or f"{self.called}.yml", "--yes", "--rehearse")

    def down(self, name: str | None = None) -> Said:
        return self.orch("down", name or self.called, "--yes", "--rehearse")

    def preview(self, file: str | None = None, *words: str) -> Said:
        return self.orch("preview", file or f"{self.called}.yml", "--rehearse", "--json", *words)

    def no_room(self, file: str | None = None) -> set[str]:
        """The places of which `orch offers` tells that they had no room a short while ago."""
        said = self.orch("offers", file or f"{self.called}.yml", "--rehearse", "--json")
        assert said.code == 0, said.err
        offers = said.json["fleets"][0]["offers"]
        return {each["zone"] for offer in offers for each in offer["no_room"]}

    def nodes(self, kind: str = KIND) -> dict[str, str]:
        """Nodes in the cloud: id -> letter of the zone."""
        return {
            each: doc["Placement"]["AvailabilityZone"][-1]
            for each, doc in self.cloud.instances().items()
            if doc["InstanceType"] == kind
        }

    def names(self, kind: str = KIND) -> list[str]:
        """Names of the nodes in the cloud."""
        docs = [doc for doc in self.cloud.instances().values() if doc["InstanceType"] == kind]
        return sorted(tag["Value"] for doc in docs for tag in doc["Tags"] if tag["Key"] == "Name")

    @property
    def stacks(self) -> Path:
        return self.path / ".orch/rehearsal/state/.pulumi/stacks/tests"

    def checkpoint(self, name: str | None = None) -> Path:
        """The file that holds a fleet's state."""
        return self.stacks / f"{name or self.called}.json"

    def write_state_later(self, name: str | None = None) -> None:
        """Date a fleet's state as a later change leaves it: what it does not record then is older than it."""
        file = self.checkpoint(name)
        whole = json.loads(file.read_text())
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        whole["checkpoint"]["latest"]["manifest"]["time"] = now
        file.write_text(json.dumps(whole))

    def at_work(self, what: str = "pulumi") -> list[int]:
        """Processes of the engine and its providers that work for this project: their folder tells."""
        return at_work(self.path, what)

    def killed(self, call: int, *words: str) -> None:
        """Run a command that is killed at a call, the engine and its providers with it."""
        self.killed_at({"at": call, "when": "after" if call % 2 else "before"}, *words)
        assert call in {each.number for each in self.cloud.calls}

    def killed_at(
        self, place: dict[str, Any], *words: str, asks: bool = True, beside: Sequence[dict[str, Any]] = ()
    ) -> None:
        """The same, at a place as a hook tells it. `asks`: the command would ask without `--yes`; `beside`:
        other hooks."""
        self.cloud.turn(hooks=[*beside, {**place, "command": KILL_ALL}])
        said = self.orch(*words, *(["--yes"] if asks else []), "--rehearse")
        assert said.code == -signal.SIGKILL, (said.code, said.err)
        # An engine that is killed leaves its language host behind, idle.
        until(lambda: set(self.at_work()) <= set(self.at_work("pulumi-language")), 60, "the providers ended")
        kill(*self.at_work("pulumi-language"))
        self.cloud.turn(hooks=[])

    def recorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> type of the cloud's resources that the state knows."""
        latest = json.loads(self.checkpoint(name).read_text())["checkpoint"]["latest"]
        mine = self.types
        found = [each for each in latest.get("resources") or () if each["type"].startswith(mine)]
        return {each["id"]: each["type"] for each in found if each.get("id")}

    def outputs(self, name: str | None = None) -> dict[str, Any]:
        """What the stack of a fleet has told of it."""
        latest = json.loads(self.checkpoint(name).read_text())["checkpoint"]["latest"]
        return next(each["outputs"] for each in latest["resources"] if each["type"] == "pulumi:pulumi:Stack")

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the cloud and not in the state."""
        known = self.recorded(name)
        groups = {each: doc["GroupName"] for each, doc in self.cloud.things("placement-group").items()}
        # Roles and profiles are recorded by name, and so are placement groups.
        names = {each: groups.get(each, each.rpartition("/")[2]) for each in self.cloud.everything()}
        return {each: kind for each, kind in self.cloud.everything().items() if names[each] not in known}

    def kinds(self) -> Counter[str]:
        return Counter(self.cloud.everything().values())

    def calls(self) -> int:
        """How many calls the account has had."""
        return len(self.cloud.calls)


@dataclass(frozen=True)
class RehearsedGcp(Rehearsed):
    """The same on GCP: single L4s in zones that are tried in this order, reached through IAP."""

    backend: ClassVar[str] = "gcp"
    types: ClassVar[str] = "gcp:"
    called: ClassVar[str] = "lab"
    account: ClassVar[type[SimulatedAccount]] = GcpCloud
    written: ClassVar[dict[str, Any]] = {
        "regions": ["us-central1"],
        "instance_types": [L4],
        "resources": {"gpu": "L4:1"},
        "network": {"bastion": False, "interconnect": "ethernet"},
    }

    def nodes(self, kind: str = L4) -> dict[str, str]:
        """Nodes in the cloud: id -> letter of the zone."""
        return {
            each: each.split("/")[3][-1]
            for each, doc in self.cloud.instances().items()
            if doc["machineType"].endswith(f"/{kind}")
        }

    def zones(self, kind: str = L4) -> Counter[str]:
        return Counter(each.split("/")[3] for each in self.nodes(kind))

    def names(self, kind: str = L4) -> list[str]:
        """Names of the nodes in the cloud, without what tells projects apart."""
        parts = [each.rpartition("/")[2].split("-") for each in self.nodes(kind)]
        return sorted("-".join([*part[1:-2], part[-1]]) for part in parts)

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the cloud and in no state; disks and members are of others."""
        known = {
            each for file in self.stacks.glob("*.json") if file.stem for each in self.recorded(file.stem)
        }
        instances = self.cloud.instances()
        members = {
            each
            for each, doc in instances.items()
            for item in doc.get("metadata", {}).get("items", ())
            if item["key"] == "created-by"
        }
        return {
            each: kind
            for each, kind in self.cloud.everything().items()
            if each not in known and each not in members and kind != "disk"
        }


@dataclass(frozen=True)
class RehearsedNebius(Rehearsed):
    """The same on Nebius: machines with eight H100, on the fabrics of one region."""

    backend: ClassVar[str] = "nebius"
    types: ClassVar[str] = "orch-nebius:"
    called: ClassVar[str] = "lab"
    account: ClassVar[type[SimulatedAccount]] = NebiusCloud
    written: ClassVar[dict[str, Any]] = {
        "regions": ["eu-north1"],
        "instance_types": [H100],
        "resources": {"gpu": "H100:8"},
        "network": {"ssh_cidrs": ["198.51.100.0/24"]},
    }

    def nodes(self, kind: str = H100) -> dict[str, str]:
        """Nodes in the cloud: id -> the fabric that it is on."""
        return {each: doc["_place"] for each, doc in self.cloud.instances().items() if doc["_type"] == kind}

    def names(self, kind: str = H100) -> list[str]:
        """Names of the nodes in the cloud."""
        return sorted(
            doc["spec"]["hostname"] for doc in self.cloud.instances().values() if doc["_type"] == kind
        )

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the cloud and not in the state; disks are of machines."""
        known = self.recorded(name)
        return {
            each: kind
            for each, kind in self.cloud.everything().items()
            if each not in known and kind != "disk"
        }


@dataclass(frozen=True)
class RehearsedCrusoe(Rehearsed):
    """The same on Crusoe: VMs with eight H200, in the InfiniBand networks of one location."""

    backend: ClassVar[str] = "crusoe"
    types: ClassVar[str] = "orch-crusoe:"
    called: ClassVar[str] = "lab"
    account: ClassVar[type[SimulatedAccount]] = CrusoeCloud
    written: ClassVar[dict[str, Any]] = {
        "regions": ["us-east1-a"],
        "instance_types": [H200],
        "resources": {"gpu": "H200:8"},
        "network": {"ssh_cidrs": ["198.51.100.0/24"]},
    }

    def nodes(self, kind: str = H200) -> dict[str, str]:
        """Nodes in the project: id -> the InfiniBand network that it is on."""
        known = self.cloud.instances().items()
        return {each: doc["_ib_network"] or "" for each, doc in known if doc["type"] == kind}

    def names(self, kind: str = H200) -> list[str]:
        """Names of the nodes in the project, without digests."""
        docs = [doc for doc in self.cloud.instances().values() if doc["type"] == kind]
        return sorted(doc["name"].rsplit("-", 3)[0] for doc in docs)

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the project and not in the state."""
        known = self.recorded(name)
        return {each: kind for each, kind in self.cloud.everything().items() if each not in known}


@dataclass(frozen=True)
class RehearsedLambda(Rehearsed):
    """The same on Lambda: instances with eight H100."""

    backend: ClassVar[str] = "lambda"
    types: ClassVar[str] = "orch-lambda:"
    called: ClassVar[str] = "lab"
    account: ClassVar[type[SimulatedAccount]] = LambdaCloud
    written: ClassVar[dict[str, Any]] = {
        "regions": ["us-east-1", "us-west-1"],
        "instance_types": [LAMBDA_H100],
        "resources": {"gpu": "H100:8"},
        "network": {"ssh_cidrs": ["198.51.100.0/24"], "interconnect": "ethernet"},
    }

    def nodes(self, kind: str = LAMBDA_H100) -> dict[str, str]:
        """Nodes in the account: id -> region."""
        return {each: doc["_region"] for each, doc in self.cloud.instances().items() if doc["_type"] == kind}

    def names(self, kind: str = LAMBDA_H100) -> list[str]:
        """Names of the nodes in the account."""
        return sorted(doc["hostname"] for doc in self.cloud.instances().values() if doc["_type"] == kind)

    def file_system(self, name: str, region: str) -> str:
        """Somebody makes a file system in the account: its id."""
        cloud, key = self.cloud, {"authorization": f"Bearer {self.cloud.api_key}"}
        answer = cloud.request("POST", "/api/v1/filesystems", "", {"name": name, "region": region}, key)
        return answer.document["data"]["id"]

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the account and not in the state."""
        known = self.recorded(name)
        return {each: kind for each, kind in self.cloud.everything().items() if each not in known}


@dataclass(frozen=True)
class RehearsedRunpod(Rehearsed):
    """The same on RunPod: pods with eight H100, which runs make."""

    backend: ClassVar[str] = "runpod"
    types: ClassVar[str] = "orch-runpod:"
    called: ClassVar[str] = "lab"
    account: ClassVar[type[SimulatedAccount]] = RunpodCloud
    written: ClassVar[dict[str, Any]] = {"regions": ["US"], "resources": {"gpu": "H100:8"}}

    def unrecorded(self, name: str | None = None) -> dict[str, str]:
        """Id -> kind of what is in the account and not in the state; pods of a cluster are of it."""
        known = self.recorded(name)
        pods = self.cloud.instances()
        return {
            each: kind
            for each, kind in self.cloud.everything().items()
            if each not in known and "cluster" not in pods.get(each, {})
        }
