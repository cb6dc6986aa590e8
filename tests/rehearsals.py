"""AWS fleets as a user brings them up in a rehearsal, and the simulated account's own list as the judge."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support import Folder, Said, at_work

from orch.providers.simulated.core import Cloud
from orch.providers.simulated.knobs import Knobs

KIND = "p5.48xlarge"
ZONES = {"a": "use1-az2", "b": "use1-az4", "c": "use1-az6"}
"""Names of the simulated account's zones -> ids."""

# A hook's command that ends all of an `up` or `down`: the provider, the engine, and who started that. A call
# of boto3 comes from orch itself, whose parent is none of ours.
KILL_ALL = (
    'case "$(tr "\\0" " " < /proc/$ORCH_SIM_PARENT/cmdline)" in '
    '*--non-interactive*) kill -9 $(ps -o ppid= -p $ORCH_SIM_PARENT) "$ORCH_SIM_PARENT" "$ORCH_SIM_PID";; '
    '*) kill -9 "$ORCH_SIM_PID";; esac'
)


@dataclass(frozen=True)
class Rehearsed(Folder):
    """A project whose clouds are simulated, without machines behind the instances."""

    @classmethod
    def make(cls, path: Path, **knobs: Any) -> Rehearsed:
        path.mkdir(parents=True, exist_ok=True)
        (path / "orch.yml").write_text("project: tests\n")
        Cloud.create(path / ".orch" / "rehearsal" / "aws.db", knobs=Knobs(**knobs)).store.close()
        return cls(path)

    @property
    def cloud(self) -> Cloud:
        return Cloud(self.path / ".orch" / "rehearsal" / "aws.db")

    def fleet(self, nodes: object, **more: Any) -> str:
        """The file of a fleet `p5`, or of another `name`."""
        name = str(more.get("name", "p5"))
        text = {
            "type": "fleet",
            "name": name,
            "backends": ["aws"],
            "regions": ["us-east-1"],
            "placement": "cluster",
            "nodes": nodes,
            "instance_types": [KIND],
            **more,
        }
        return self.write(f"{name}.yml", yaml.safe_dump(text, sort_keys=False, default_flow_style=None))

    def up(self, file: str = "p5.yml") -> Said:
        return self.orch("up", file, "--yes", "--rehearse")

    def down(self, name: str = "p5") -> Said:
        return self.orch("down", name, "--yes", "--rehearse")

    def preview(self, file: str = "p5.yml", *words: str) -> Said:
        return self.orch("preview", file, "--rehearse", "--json", *words)

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

    def checkpoint(self, name: str = "p5") -> Path:
        """The file that holds a fleet's state."""
        return self.path / ".orch/rehearsal/state/.pulumi/stacks/tests" / f"{name}.json"

    def at_work(self, what: str = "pulumi") -> list[int]:
        """Processes of the engine and its providers that work for this project: their folder tells."""
        return at_work(self.path, what)

    def recorded(self, name: str = "p5") -> dict[str, str]:
        """Id -> type of the cloud's resources that the state knows."""
        file = self.path / ".orch/rehearsal/state/.pulumi/stacks/tests" / f"{name}.json"
        found = json.loads(file.read_text())["checkpoint"]["latest"].get("resources") or ()
        return {
            each["id"]: each["type"] for each in found if each["type"].startswith("aws:") and each.get("id")
        }

    def unrecorded(self, name: str = "p5") -> dict[str, str]:
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
