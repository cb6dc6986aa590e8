"""Outputs of real tools that were reported in public: what each is read as."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.nodes.kernellog import as_read

from orch.runner.health.examination import read
from orch.runner.health.findings import HealthReport
from orch.spec.access import SshAccess
from orch.spec.state import Gpus, NodeState

pytestmark = pytest.mark.quick

RECORDED = Path(__file__).with_name("recorded")
FAULTS: list[dict[str, Any]] = yaml.safe_load((RECORDED / "faults.yml").read_text("utf-8"))
H100 = (RECORDED / "h100.xml").read_text("utf-8")
"""NVIDIA H100 80GB HBM3, driver 580.159.04, recorded 2026-11-26; serial and UUID replaced."""

HEALTHY = {
    "kernel": (
        "done 0",
        "[    0.913924] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
    ),
    "smi": ("done 0", H100),
    "nvlink": ("done 0", ""),
    "nvlink_errors": ("done 0", ""),
    "dcgm_health": ("done 127", ""),
    "df": ("done 0", "/ 40% 60000000"),
    "mounts": ("done 0", ""),
    "memory": ("done 0", "MemTotal:  1000 kB\nMemAvailable:  900 kB"),
    "clock": ("done 0", "NTPSynchronized=yes"),
    "edac": ("done 0", "mc0 DIMM_A1 ue 0 ce 0"),
    "rdma": ("done 0", "mlx5_0;1;mlx5_core;InfiniBand;4: ACTIVE;5: LinkUp;400 Gb/sec (4X NDR);pf;0;0;MT4129"),
}
OF_VENDOR = {
    "amd": {"amd_metric": ("missing 0", ""), "ras": ("done 0", "card0 0000:1c:00.0 umc_err_count ue: 0")},
    "intel": {"gaudi": ("done 0", "0, 0000:1a:00.0, 0, 0, 41")},
    "tenstorrent": {"tenstorrent": ("missing 0", "")},
}


def node(gpus: int = 1, vendor: str = "nvidia") -> NodeState:
    access = SshAccess(address="10.0.0.1", user="root", host_key="ssh-ed25519 AAAA")
    return NodeState(index=0, name="n0", access=access, gpus=Gpus(count=gpus, vendor=vendor))


def look(of: NodeState, sections: dict[str, tuple[str, str]], *context: str) -> HealthReport:
    """What a node is read as whose tools print `sections`: how each ended, and its text."""
    lines = [
        "@orch done 1",
        "orch|contained 0",
        "orch|booted 1704067200",
        *(f"orch|{each}" for each in context),
    ]
    for name, (end, text) in sections.items():
        lines.append(f"@{name} {end}")
        lines += [f"{name}|{line}" for line in text.splitlines()]
    return read(of, "\n".join(lines))


def with_values(values: dict[str, str]) -> str:
    """The H100's answer with other values."""
    from xml.etree import ElementTree

    root = ElementTree.fromstring(H100[H100.index("<nvidia_smi_log") :])
    for path, value in values.items():
        found = root.find(f"gpu/{path}")
        assert found is not None, path
        found.text = value
    return ElementTree.tostring(root, encoding="unicode")


def test_there_are_outputs_of_at_least_twenty_five_faults_each_with_its_source() -> None:
    faults = [each for each in FAULTS if each["status"] != "healthy"]
    assert len(faults) >= 25
    assert len([each for each in faults if "shape" not in each and "set" not in each]) >= 25
    assert all(each["source"].startswith("https://") for each in FAULTS)
    assert max(Counter(each["name"] for each in FAULTS).values()) == 1


@pytest.mark.parametrize("case", FAULTS, ids=[each["name"] for each in FAULTS])
def test_a_recorded_output_is_read_rightly(case: dict[str, Any]) -> None:
    vendor = case.get("vendor", "nvidia")
    sections = {**HEALTHY, **OF_VENDOR.get(vendor, {})}
    text = case["lines"] if "lines" in case else with_values(case["set"])
    text = as_read(text) if case["tool"] == "kernel" else text
    sections[case["tool"]] = (f"done {case.get('code', 0)}", text)
    found = look(node(case.get("gpus", 1), vendor), sections, "switched 1" if case.get("switched") else "x 0")
    assert (found.status, found.action) == (case["status"], case["action"]), found.findings
    if case["status"] == "healthy":
        assert found.findings == ()
    else:
        worst = found.findings[0]
        assert (worst.check, worst.part) == (case["check"], case["part"])
        assert case["reason"] in worst.reason
        assert len(found.findings) == case.get("count", 1), found.findings
        assert worst.check not in found.passed
    if "skipped" in case:
        assert case["skipped"] in {each.check for each in found.skipped}


def test_a_healthy_h100_is_healthy() -> None:
    found = look(node(), HEALTHY)
    assert (found.status, found.reason, found.findings) == ("healthy", "", ())
    assert {"gpu count", "ecc", "remapped rows", "xid", "thermal", "clock", "rdma"} <= set(found.passed)
    assert {each.check for each in found.skipped} == {"dcgm health", "nvlink"}
