"""Faults of real containers whose GPUs, ports and kernel pretend: each is found by the gate, by interval and
by `orch verify`, named to the card, the port or the link, and no new job goes there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, containers, docker

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("engine")]

SMI = (Path(__file__).parents[1] / "runner/health/recorded/h100.xml").read_text("utf-8")
SECOND = "0000:00:07"
FLEET = """\
type: fleet
name: clinic
backend: local
nodes: 3
placement: cluster
resources: {gpu: 2, memory: 1GB}
"""
TASK = """\
type: task
name: {name}
image: orch/job
nodes: {nodes}
resources: {{gpu: 2, cpu: 0.., memory: 64MB..}}
commands: ["echo here $ORCH_INSTANCE"]
"""
TOOLS = """\
cat > /usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
[ "$*" = "-q -x" ] || exit 3
cat /opt/said 2>/dev/null
cat /opt/smi.xml
exit $(cat /opt/code 2>/dev/null || echo 0)
END
printf '#!/bin/sh\\ncat /opt/kernel 2>/dev/null; exit 0\\n' > /usr/local/bin/dmesg
chmod +x /usr/local/bin/nvidia-smi /usr/local/bin/dmesg
cp /opt/smi.xml /opt/sound.xml
for port in 0 1 2 3; do
  at=/var/lib/orch/simulated/infiniband/mlx5_$port/ports/1
  mkdir -p $at/counters
  echo InfiniBand > $at/link_layer
  echo '4: ACTIVE' > $at/state
  echo '5: LinkUp' > $at/phys_state
  echo '400 Gb/sec (4X NDR)' > $at/rate
  echo 0 | tee $at/counters/link_downed > $at/counters/symbol_error
  echo MT4129 > /var/lib/orch/simulated/infiniband/mlx5_$port/hca_type
done
"""
PORT = "/var/lib/orch/simulated/infiniband/mlx5_2/ports/1"
MEND = f"""\
cp /opt/sound.xml /opt/smi.xml
rm -f /opt/said /opt/code /opt/kernel
echo '4: ACTIVE' > {PORT}/state
echo '5: LinkUp' > {PORT}/phys_state
"""


@dataclass(frozen=True)
class Fault:
    """`script`: injects it into a node; `named`: what every look at the node says of it."""

    script: str
    named: str


LOST = "Unable to determine the device handle for GPU0000:00:07.0: GPU is lost.  Reboot the system to recover"
FAULTS = {
    "a tool": Fault(
        "sed -i 's/<remapped_row_failure>No/<remapped_row_failure>Yes/' /opt/smi.xml",
        "GPU 0 (0000:00:06): a row of memory could not be remapped",
    ),
    "a line of the kernel": Fault(
        f"echo '[    9.1] NVRM: Xid (PCI:{SECOND}): 79, pid=7, GPU has fallen off the bus.' > /opt/kernel",
        f"GPU 1 ({SECOND}): Xid 79: the GPU has fallen off the bus",
    ),
    "a dead port": Fault(
        f"echo '1: DOWN' > {PORT}/state; echo '2: Polling' > {PORT}/phys_state",
        "mlx5_2 port 1: the port is DOWN (Polling)",
    ),
    # Between two looks: the first listed both.
    "a lost device": Fault(
        f"echo '{LOST}' > /opt/said; echo 15 > /opt/code; : > /opt/smi.xml; "
        f"echo '[   99.1] NVRM: Xid (PCI:{SECOND}): 79, GPU has fallen off the bus.' > /opt/kernel",
        f"GPU at {SECOND}: a GPU has fallen off the bus",
    ),
}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("clinic")
    backend = f"{{type: local, node_image: '{stocked('job')}', simulate_gpu: 'H100:80GB:2'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    both = path / "smi.xml"
    both.write_text(two_gpus(SMI))
    for index in range(3):
        docker("cp", "-q", str(both), f"{container(folder, index)}:/opt/smi.xml")
        on(folder, index, TOOLS)
    yield folder
    said = folder.orch("down", "fleet.yml", "--yes", "--force", timeout=600)
    assert said.code == 0, said.err


def two_gpus(text: str) -> str:
    """The driver's answer with a second GPU like the first."""
    start, end = text.index("<gpu id="), text.index("</gpu>") + len("</gpu>")
    gpu = text[start:end]
    assert "00:06" in gpu
    both = f"{text[:end]}\n{gpu.replace(':00:06', ':00:07')}{text[end:]}"
    return both.replace("<attached_gpus>1<", "<attached_gpus>2<")


def container(folder: Folder, index: int) -> str:
    return next(name for name in containers(folder, "clinic") if name.endswith(f"-{index}"))


def on(folder: Folder, index: int, script: str) -> str:
    return docker("exec", container(folder, index), "sh", "-ec", script)


def run(folder: Folder, name: str, count: int) -> Said:
    return folder.orch("run", folder.write(f"{name}.yml", TASK.format(name=name, nodes=count)))


def verify(folder: Folder) -> Said:
    return folder.orch("verify", "clinic", "--runs", "all_reduce", "--size", "64K", "--json", timeout=280)


def shortfalls(said: Said) -> set[tuple[str, str, tuple[str, ...], str]]:
    told = json.loads(said.out)["shortfalls"]
    return {(each["code"], each["kind"], tuple(each["nodes"]), each["text"]) for each in told}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_by_gate_by_interval_and_by_verify_and_no_new_job_goes_there(
    clinic: Folder, kind: str
) -> None:
    fault = FAULTS[kind]
    assert clinic.orch("health", "clinic").code == 0
    on(clinic, 1, fault.script)
    try:
        # As after a boot, nobody has examined the node.
        on(clinic, 1, "rm /var/lib/orch/health")
        said = run(clinic, "all", 3)
        assert said.code == 7, said.out
        assert "ORCH390: node clinic-1 is kept out" in said.err
        assert fault.named in said.err

        # As if nobody had looked for long: what was found then was nothing.
        on(clinic, 1, "rm /var/lib/orch/health")
        said = clinic.orch("reconcile")
        assert f"node clinic-1: failure, takes no new jobs: {fault.named}" in said.err, said.err
        said = run(clinic, "two", 2)
        assert said.code == 0, said.err
        assert {"here clinic-0", "here clinic-2"} == {
            line.rpartition("] ")[2] for line in said.out.splitlines() if "here clinic" in line
        }

        on(clinic, 1, "rm /var/lib/orch/health")
        said = verify(clinic)
        assert said.code == 8, said.err
        assert said.json["run"] is not None
        found = {each for each in shortfalls(said) if each[0] == "ORCH448"}
        assert any(each[1:3] == ("health", ("clinic-1",)) and fault.named in each[3] for each in found)
        assert {each[2] for each in found} == {("clinic-1",)}
        assert (
            "node clinic-1 takes no new jobs until `orch health clinic --node clinic-1` is fine" in said.err
        )
        assert run(clinic, "all", 3).code == 7
    finally:
        on(clinic, 1, MEND)
    assert clinic.orch("health", "clinic").code == 0
    assert run(clinic, "all", 3).code == 0


def test_a_dead_link_and_a_dead_port_of_the_network_are_found_by_verify(clinic: Folder) -> None:
    nodes = clinic.orch("fleet", "show", "clinic", "--json").json["fleets"][0]["nodes"]
    address = {node["name"]: node["internal_ip"] for node in nodes}

    def closed(*others: str) -> str:
        return "; ".join(f"ip route add blackhole {address[name]}/32" for name in others)

    on(clinic, 1, closed("clinic-2"))
    try:
        said = verify(clinic)
        assert said.code == 8, said.err
        assert {each[:3] for each in shortfalls(said)} == {("ORCH447", "link", ("clinic-1", "clinic-2"))}
        assert (said.json["run"], said.json["figures"]) == (None, [])
        on(clinic, 1, closed("clinic-0"))
        said = verify(clinic)
        assert said.code == 8, said.err
        assert {each[:3] for each in shortfalls(said)} == {("ORCH447", "node", ("clinic-1",))}
        said = run(clinic, "all", 3)
        assert said.code == 7, said.out
        assert "node clinic-1 and 2 of 2 other nodes do not connect" in said.err
    finally:
        on(clinic, 1, "ip route show | grep ^blackhole | while read -r words; do ip route del $words; done")
    said = clinic.orch("verify", "clinic", "--size", "64K", timeout=280)
    assert said.code == 0, said.out + said.err
    assert run(clinic, "all", 3).code == 0
