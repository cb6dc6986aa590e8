"""Tools print what they like: an odd answer costs its own fact, is told by its tool's name, ends nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.providers.orch.ssh_host import _outputs
from orch.runner.hosts.checks.requirements import judge_host
from orch.runner.hosts.checks.types import CheckOptions, HostObservation
from orch.runner.hosts.facts import parse
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.mesh import read_connectivity, read_listener
from orch.runner.hosts.network import NetworkMember, duplicate_machine_ids, find_network
from orch.runner.hosts.survey import read_container

DATA = Path(__file__).parent / "data"
HOSTS = {name: (DATA / f"{name}.txt").read_text() for name in ("h100", "mi300x", "gaudi2", "wormhole")}
SECTION = re.compile(r"^@@(?!=)(\S+)(?: [^\n]*)?\n(.*?)^@@= \d+$", re.MULTILINE | re.DOTALL)

# The facts that a part of the answer is for. Which tools were asked is told of all, and what was odd.
SYSTEM = {"os", "distribution", "kernel", "arch", "machine_id", "cpus", "memory_mib", "hugepages"}
OWNED: dict[str, set[str]] = {
    "now": {"clock_offset_s"},
    "root": {"root", "root_trouble"},
    "system": {*SYSTEM, "hugepage_kib", "memlock_kib"},
    "disks": {"disks"},
    "net": {"interfaces", "sees_addresses"},
    "rdma": {"rdma_ports", "rdma_files"},
    "amd": {"gpus", "kfd", "amdgpu"},
    "tt": {"gpus", "tenstorrent_devices"},
    "docker": {"docker"},
    "free": {"docker"},
    "nvidia": {"gpus"},
    "nvidia.head": {"gpus"},
    "nvidia.ctk": {"nvidia_toolkit"},
    "amd.smi": {"gpus"},
    "gaudi": {"gpus"},
    "tt.smi": {"gpus"},
    "dcgm": set(),
    "sshd": {"forwarding"},
    "pci": {"pci_devices"},
}


def described(text: str) -> HostFacts:
    found = parse(text, sent=1.0, received=2.0)
    assert found is not None
    return found


def with_part(host: str, part: str, text: str) -> str:
    """A recorded answer with another text in one of its parts."""
    pieces = list(SECTION.finditer(HOSTS[host]))
    found = next((piece for piece in pieces if piece.group(1) == part), None)
    if found is None:
        return f"{HOSTS[host]}\n@@{part}\n{text}\n@@= 0\n"
    return HOSTS[host][: found.start(2)] + text + "\n" + HOSTS[host][found.end(2) :]


def part_of(host: str, part: str) -> str:
    return next(piece.group(2) for piece in SECTION.finditer(HOSTS[host]) if piece.group(1) == part)


def use(facts: HostFacts) -> None:
    """All that is made of facts: judged, compared, recorded, told."""
    wanted = CheckOptions(cluster=True)
    checks = judge_host(HostObservation("gpu1", facts=facts), wanted)
    json.dumps([[check.detail, check.hint] for check in checks]).encode()
    " ".join(check.detail for check in checks).encode()
    member = NetworkMember("gpu1", facts.interfaces, None, facts.sees_addresses)
    for network in (None, "10.0.0.0/8"):
        find_network([member], network=network)
    find_network([NetworkMember("gpu1", facts.interfaces, "10.0.0.4", True)])
    duplicate_machine_ids({"gpu1": facts.machine_id})
    told = _outputs(facts, {**facts.registered(), "internal_ip": "10.0.0.4"})
    json.dumps(told, allow_nan=False).encode()


ODD: list[Any] = [
    *("N/A", "", None, [], {}, 0, -1, 1.5, True, [[]], {"value": "N/A"}, "\ud800", "9" * 5000),
    *(10**400, 10**30, [{"asic": "N/A"}], "a\0b", "\x1b[2J", {"a": {"b": []}}),
]


@st.composite
def odd_json(draw: st.DrawFn, whole: Any) -> Any:
    """The same with one part of it replaced, at any depth."""
    if not isinstance(whole, (dict, list)) or not whole or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(ODD))
    if isinstance(whole, dict):
        key = draw(st.sampled_from(sorted(whole)))
        return {**whole, key: draw(odd_json(whole[key]))}
    at = draw(st.integers(0, len(whole) - 1))
    return [*whole[:at], draw(odd_json(whole[at])), *whole[at + 1 :]]


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """The text with one thing odd in it; no line that would begin another part."""
    json_in = re.search(r"^[\[{].*", text, re.MULTILINE | re.DOTALL)
    how = draw(
        st.sampled_from(
            ["json", "cut", "put", "word", "other", "deep"] if json_in else ["cut", "put", "word", "other"]
        )
    )
    if how == "json" and json_in:
        decoder = json.JSONDecoder()
        whole, length = decoder.raw_decode(json_in.group())
        new = draw(odd_json(whole))
        text = text[: json_in.start()] + json.dumps(new) + json_in.group()[length:]
    elif how == "deep":
        text = "[" * 100_000
    elif how == "cut":
        at = draw(st.integers(0, len(text)))
        text = text[:at] + text[at + draw(st.integers(1, 40)) :]
    elif how == "put":
        at = draw(st.integers(0, len(text)))
        new = draw(
            st.text(max_size=20)
            | st.sampled_from(["9" * 5000, "\0", "²", "٣" * 30, '"', "[", "/", "fe80::1%x/64"])
        )
        text = text[:at] + new + text[at:]
    elif how == "word":
        words = re.split(r"(\s+|,)", text)
        at = draw(st.integers(0, len(words) - 1))
        words[at] = draw(
            st.sampled_from(["N/A", "-", "9" * 5000, "300.1.1.1/24", "10.0.0.1/99", "x" * 200_000, "%"])
        )
        text = "".join(words)
    else:
        text = draw(st.text(max_size=200))
    return re.sub(r"^@@", " @@", text, flags=re.MULTILINE)


def kept(part: str, before: HostFacts, after: HostFacts) -> None:
    """Every fact of another part is as it was."""
    lost = OWNED[part] | {"tools", "unread"}
    for name in HostFacts.model_fields:
        if name not in lost:
            assert getattr(after, name) == getattr(before, name), name
    if "gpus" in lost:
        vendor = {"nvidia": "nvidia", "nvidia.head": "nvidia", "gaudi": "intel"}
        own = vendor.get(part, "amd" if part.startswith("amd") else "tenstorrent")
        others = [[gpu for gpu in facts.gpus if gpu.vendor != own] for facts in (before, after)]
        assert others[0] == others[1]


@pytest.mark.parametrize("host", HOSTS)
@given(data=st.data())
def test_an_odd_answer_costs_its_own_fact_and_nothing_else(host: str, data: st.DataObject) -> None:
    parts = [piece.group(1) for piece in SECTION.finditer(HOSTS[host])]
    part = data.draw(st.sampled_from(sorted(set(parts) - {"root"})))
    text = data.draw(mangled(part_of(host, part)))
    after = described(with_part(host, part, text))
    kept(part, described(HOSTS[host]), after)
    use(after)


SEEN = [
    ("mi300x", "amd.smi", '[{"asic": "N/A", "vram": "N/A", "driver": "N/A"}]', None),
    ("mi300x", "amd.smi", '[{"asic": ["MI300X"]}]', "amd-smi"),
    ("mi300x", "amd.smi", '{"card0": "text", "system": {}}', "amd-smi"),
    ("wormhole", "tt.smi", '{"device_info": [{"board_info": "N/A"}], "host_info": "N/A"}', None),
    ("wormhole", "tt.smi", '{"device_info": [{"board_info": 7}]}', "tt-smi"),
    ("h100", "docker", '{"ServerVersion": "27.0", "Runtimes": "nvidia"}', "docker info"),
    ("h100", "docker", '{"ServerVersion": 27, "Runtimes": {"nvidia": {}}}', "docker info"),
    ("h100", "net", "if eth0 1500 -1 : : :\naddr eth0 10.0.0.300/24\naddr eth0 10.0.0.7/24", "ip addr"),
]


@pytest.mark.parametrize(("host", "part", "text", "tool"), SEEN)
def test_what_cannot_be_read_is_told_by_its_tool_s_name(
    host: str, part: str, text: str, tool: str | None
) -> None:
    after = described(with_part(host, part, text))
    kept(part, described(HOSTS[host]), after)
    use(after)
    assert [tool in each.tool for each in after.unread] == [True] if tool else not after.unread
    if tool:
        checks = judge_host(HostObservation("gpu1", facts=after), CheckOptions(cluster=True))
        told = [check for check in checks if "cannot be read" in check.detail]
        assert [check.result in ("warn", "fail") for check in told] == [True]
        assert tool in told[0].detail


def test_one_odd_address_costs_itself_and_an_odd_runtime_list_not_docker() -> None:
    odd = described(with_part("h100", "net", SEEN[7][2]))
    assert [interface.addresses for interface in odd.interfaces] == [("10.0.0.7/24",)]
    docker = described(with_part("h100", "docker", SEEN[5][2])).docker
    assert docker is not None
    assert (docker.version, docker.runtimes) == ("27.0", ())


@given(
    st.text(max_size=60),
    st.sampled_from(["listen ", "sshd ", "reach 0 ok ", "size 0 no ", "image x\nexit ", ""]),
)
def test_what_scripts_on_hosts_say_is_read_whatever_it_is(text: str, head: str) -> None:
    for said in (head + text, f"{head}{'9' * 5000}", f"x\n{head}{text}"):
        listener = read_listener(said, 22)
        assert 0 <= listener.port < 100_000
        assert set(read_connectivity(said, ["gpu2"])) == {"gpu2"}
        read_container(said, None)
