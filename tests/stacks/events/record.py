"""Writes the previews of this folder: see README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

SECRET_MARK = "4dabf18193072939515e22adb298388d"
ELSEWHERE = "/home/ada/fleets"
QUIET = ("same", "refresh")
WITHOUT_LEAVES = ("create", "delete", "delete-replaced")


@dataclass
class Recorder:
    """One fleet of a project in a folder."""

    folder: Path
    project: Any
    fleet: dict[str, Any]
    prefix: str
    base: dict[str, Any] = field(default_factory=dict)

    def wish(self, **more: Any) -> Any:
        import yaml

        from orch.spec.loader.load import load_paths
        from orch.spec.models import Fleet
        from orch.stacks.plans.request import FleetRequest

        path = self.folder / "fleet.yml"
        path.write_text(yaml.safe_dump({**self.fleet, **more}))
        loaded = load_paths([path])
        assert not loaded.failed, loaded
        ((_, fleet),) = loaded.of(Fleet)
        return FleetRequest(fleet, self.folder)

    def up(self, **more: Any) -> None:
        from orch.stacks.provisioning import operations

        operations.up(self.project, self.wish(**more), lambda event: None)

    def record(self, case: str, **more: Any) -> None:
        from orch.components.explain import known
        from orch.stacks.plans.program import program
        from orch.stacks.plans.request import compile_for
        from orch.stacks.provisioning.gang import parallel
        from orch.stacks.pulumi.operation import EngineCall, engine
        from orch.stacks.stack.state import StackState

        wish = self.wish(**more)
        stack = StackState(self.project, wish.name)
        recorded, nodes = stack.outputs, stack.makers
        compiled = compile_for(stack, wish)
        run = EngineCall(lambda event: None, planning=True)
        engine(stack, ["preview", *parallel(compiled)], run, program(compiled))
        told = {
            "backend": recorded["fleet"]["backend"],
            "fleet": wish.name,
            "before": {"traits": known(recorded), "nodes": nodes},
            "plan": {
                "traits": dict(compiled.traits),
                "nodes": list(compiled.nodes),
                "makers": dict(compiled.makers),
                "moves": compiled.moves,
            },
        }
        events = [slim for event in run.events if (slim := slimmed(event))]
        file = HERE / f"{self.prefix}-{case}.json"
        write(file, told, events)
        file.write_text(file.read_text().replace(str(self.folder), ELSEWHERE))
        print(f"{self.prefix}-{case}: {len(events)} events")

    def down(self) -> None:
        from orch.stacks.provisioning import operations

        operations.down(self.project, self.fleet["name"], lambda event: None)


def write(file: Path, told: Mapping[str, Any], events: list[dict[str, Any]]) -> None:
    """One event a line. What several events tell of a resource is in `states` once."""
    states: list[str] = []
    for event in events:
        (data,) = (each["metadata"] for each in event.values())
        for side in ("old", "new"):
            text = json.dumps(data[side], separators=(",", ":"))
            if text not in states:
                states.append(text)
            data[side] = states.index(text)
    head = json.dumps(told, indent=1)[:-2]
    lines = ",\n".join(f"  {json.dumps(each, separators=(',', ':'))}" for each in events)
    pool = ",\n".join(f"  {text}" for text in states)
    file.write_text(f'{head},\n "states": [\n{pool}\n ],\n "events": [\n{lines}\n ]\n}}\n')


def slimmed(event: Mapping[str, Any]) -> dict[str, Any] | None:
    for kind in ("resourcePreEvent", "resOutputsEvent"):
        if kind in event:
            data = event[kind]["metadata"]
            kept = {key: data.get(key) for key in ("op", "urn", "type")}
            silent = data["op"] in QUIET and not data.get("detailedDiff") and not _observed(data)
            silent = silent or data["op"] in WITHOUT_LEAVES or data["type"].startswith("pulumi:")
            for side in ("old", "new"):
                kept[side] = _state(data.get(side), silent=silent)
            more = {key: data[key] for key in ("keys", "detailedDiff") if data.get(key)}
            return {kind: {"metadata": {**kept, **more}}}
    return None


def _observed(data: Mapping[str, Any]) -> bool:
    return any("observed" in ((data.get(side) or {}).get("outputs") or {}) for side in ("old", "new"))


def _state(state: Mapping[str, Any] | None, *, silent: bool) -> Any:
    if not state:
        return None
    if silent:
        return {"id": state.get("id")}
    return {key: _without_ciphertext(state.get(key)) for key in ("id", "inputs", "outputs")}


def _without_ciphertext(value: Any) -> Any:
    if isinstance(value, Mapping):
        if SECRET_MARK in value:
            return {SECRET_MARK: value[SECRET_MARK], "ciphertext": "-"}
        # All that a host tells of itself is this machine's, and no plan shows it.
        return {key: _without_ciphertext(item) for key, item in value.items() if key != "facts"}
    return [_without_ciphertext(item) for item in value] if isinstance(value, list) else value


# The backends


def aws(folder: Path) -> None:
    from kit.clouds.aws_engine import stack

    lab = stack(folder, quotas={"L-417A185B": 20_000})
    fleet = {
        "type": "fleet",
        "name": "p5",
        "backends": ["aws"],
        "regions": ["us-east-1"],
        "placement": "cluster",
        "nodes": 4,
        "instance_types": ["p5.48xlarge"],
        "tags": {"owner": "ada"},
    }
    made = Recorder(folder, lab.project, fleet, "aws")
    made.up()
    made.record("as-it-is")
    made.record("nodes-5", nodes=5)
    made.record("nodes-3", nodes=3)
    made.record("tags", tags={"owner": "eve", "cost": "17"})
    made.record("disk", resources={"disk": "500GB"})
    made.record("type", instance_types=["p5en.48xlarge"])
    made.record("any", placement="any")
    made.record("region", regions=["us-west-2"])
    ec2 = lab.session.client("ec2", region_name="us-east-1")
    ids = {
        next(tag["Value"] for tag in each["Tags"] if tag["Key"] == "Name"): each["InstanceId"]
        for each in lab.live()
    }
    ec2.create_tags(Resources=[ids["p5-1"]], Tags=[{"Key": "owner", "Value": "mallory"}])
    groups = ec2.describe_security_groups()["SecurityGroups"]
    group = next(each for each in groups if each["GroupName"].endswith("nodes"))
    world = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[world])
    made.record("drift")
    made.record("drift-and-tags", tags={"owner": "eve"})
    ec2.terminate_instances(InstanceIds=[ids["p5-2"]])
    made.record("drift-gone-and-nodes-5", nodes=5)
    made.record("drift-and-disk", resources={"disk": "500GB"})
    made.down()


def gcp(folder: Path) -> None:
    from kit.clouds.gcp_engine import stack

    lab = stack(folder, "lab")
    fleet = {
        "type": "fleet",
        "name": "lab",
        "backends": ["gcp"],
        "regions": ["us-central1"],
        "placement": "cluster",
        "nodes": 2,
        "instance_types": ["g2-standard-4"],
        "resources": {"gpu": "L4:1"},
        "network": {"bastion": False, "interconnect": "ethernet"},
        "tags": {"owner": "ada"},
    }
    made = Recorder(folder, lab.project, fleet, "gcp")
    made.up()
    made.record("nodes-3", nodes=3)
    made.record("tags", tags={"owner": "eve"})
    made.record("disk", resources={"gpu": "L4:1", "disk": "300GB"})
    made.record("region", regions=["us-west1"])
    first = next(path for path in lab.cloud.instances() if path.endswith("-0"))
    held = _asked(lab, "GET", first)
    labels = {"labels": {**held["labels"], "owner": "mallory"}, "labelFingerprint": held["labelFingerprint"]}
    _asked(lab, "POST", f"{first}/setLabels", labels)
    made.record("drift")
    made.record("drift-and-tags", tags={"owner": "eve"})
    made.down()


def _asked(lab: Any, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    status, answer = lab.cloud.request(method, path, {}, body, caller="test")
    assert status == 200, answer
    return answer


def local(folder: Path) -> None:
    from orch.stacks.project.project import find

    (folder / "orch.yml").write_text("project: tests\n")
    fleet = {
        "type": "fleet",
        "name": "laptop",
        "backend": "local",
        "placement": "cluster",
        "nodes": 2,
        "resources": {"cpu": 1, "memory": "1GB"},
    }
    made = Recorder(folder, find(folder), fleet, "local")
    made.up()
    try:
        made.record("as-it-is")
        made.record("nodes-1", nodes=1)
        made.record("nodes-3", nodes=3)
        made.record("cpu", resources={"cpu": 2, "memory": "1GB"})
        made.record("no-memory-limit", resources={"cpu": 1})
        scope = next(each["name"] for each in _containers(folder) if each["name"].endswith("-1"))
        words = ("update", "--memory", "900m", "--memory-swap", "900m")
        subprocess.run(["docker", *words, scope], check=True, capture_output=True)
        made.record("drift")
        made.record("drift-and-memory", resources={"cpu": 1, "memory": "2GB"})
        subprocess.run(["docker", "rm", "-f", "-v", scope], check=True, capture_output=True)
        made.record("drift-gone-and-nodes-3", nodes=3)
    finally:
        made.down()


def _containers(folder: Path) -> list[dict[str, str]]:
    from kit.support import Folder
    from kit.support import containers as listed

    return [{"name": name} for name in listed(Folder(folder), "laptop")]


def ssh(folder: Path) -> None:
    with room_of(folder) as room:
        from orch.stacks.project.project import find

        (folder / "orch.yml").write_text("project: tests\n")
        hosts = ["gpu1", "gpu2", "gpu3"]
        fleet: dict[str, Any] = {
            "type": "fleet",
            "name": "on-prem",
            "placement": "any",
            "ssh_config": {"known_hosts": "accept-new", "hosts": hosts},
        }
        made = Recorder(folder, find(folder), fleet, "ssh")
        made.up()
        made.record("as-it-is")
        made.record("a-host-more", ssh_config={**fleet["ssh_config"], "hosts": [*hosts, "gpu4"]})
        made.record("a-host-less", ssh_config={**fleet["ssh_config"], "hosts": hosts[:2]})
        made.record("blocks", blocks=2)
        with room.servers[0].lost_gpu():
            made.record("drift")
            made.record("drift-and-blocks", blocks=2)
        made.down()


@contextmanager
def room_of(folder: Path) -> Iterator[Any]:
    from kit.nodes.hostlab import server_room
    from platformdirs import user_cache_path

    cache = str(user_cache_path())
    room = server_room(folder)
    os.environ |= {"HOME": str(room.home), "XDG_CACHE_HOME": cache}
    try:
        yield room
    finally:
        room.lab.remove()


BACKENDS: dict[str, Callable[[Path], None]] = {"aws": aws, "gcp": gcp, "local": local, "ssh": ssh}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        BACKENDS[sys.argv[1]](Path(where))
