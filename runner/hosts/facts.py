"""Facts of a host: one script over SSH, whose sections become a HostFacts.

`parse` is pure. When a tool is missing, fails or hangs, only its own facts are missing.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from orch.runner.errors import HostUnreachable
from orch.runner.hosts import parse_hardware
from orch.runner.hosts.host_facts import Docker, HostDisk, HostFacts, Tool, UnreadOutput
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Connector
from orch.spec.state import NodeState
from orch.templates import render

__all__ = ["HostFacts", "facts_command", "parse", "read_facts"]

T = TypeVar("T")

LIMIT_S = 25
"""Time limit of all vendor tools together; eight NVIDIA GPUs without persistence mode need about ten."""

_WITH_BEST_RIGHTS = """\
export LC_ALL=C
u=$(id -un) s={script}
if [ "$(id -u)" = 0 ]; then exec sh -c "$s" orch root "$PATH" "$u" "$SSH_CONNECTION"; fi
if why=$(sudo -n true 2>&1); then exec sudo -n sh -c "$s" orch sudo "$PATH" "$u" "$SSH_CONNECTION"; fi
exec sh -c "$s" orch "no $(echo $why)" "$PATH" "$u" "$SSH_CONNECTION"
"""


def facts_command() -> Command:
    """Reads all facts in one round trip, as root if the login is root or may use sudo, else as the login."""
    script = render("host-facts.sh.j2", limit_s=LIMIT_S)
    text = _WITH_BEST_RIGHTS.replace("{script}", shlex.quote(script))
    return Command(text, "read the facts of the host", timeout_s=LIMIT_S + 20.0)


def read_facts(node: NodeState, connector: Connector, *, deadline_s: float | None = None) -> HostFacts:
    """The present facts of a host.

    Raises what `Connector.run` raises, and HostUnreachable for a login that cannot run commands.
    """
    started = time.time()
    started_monotonic = time.monotonic()
    result = connector.run(node, facts_command(), deadline_s=deadline_s)
    facts = parse(result.stdout, sent=started, received=started + time.monotonic() - started_monotonic)
    if facts is None:
        user = connector.address(node).user
        raise HostUnreachable(
            f"{node.name} lets {user} in, but runs no commands",
            where=str(connector.address(node)),
            detail=(result.stdout + result.stderr).strip()[-300:] or f"exit code {result.exit_code}",
            hint=f"give {user} a login shell (`chsh -s /bin/sh {user}`), no forced command",
        )
    return facts


@dataclass(frozen=True)
class FactsSection:
    """The output and exit code of one part of the script."""

    text: str
    exit_code: int

    @property
    def message(self) -> str:
        """The first line, or all lines of a failure joined, at most 200 characters."""
        return (" ".join(self.text.split()) if self.exit_code else self.text.partition("\n")[0])[:200]


def parse(text: str, *, sent: float | None = None, received: float | None = None) -> HostFacts | None:
    """The facts in the script's output; None when the script did not run.

    `sent` and `received` are this machine's seconds since 1970 around the round trip; without them the clock
    is not compared.
    """
    sections = _read_sections(text)
    if "now" not in sections:
        return None
    parts: Mapping[str, FactsSection] = {name: each[0] for name, each in sections.items()}
    read = _Reader()
    root, trouble = read("root", lambda: _root(parts.get("root")), ("no", None))
    interfaces, sees_addresses, bad_addresses = read(
        "net", lambda: parse_hardware.interfaces(_text(parts, "net")), ((), True, ())
    )
    for words in bad_addresses:
        read.note("net", f"no address: {words}")
    rdma_ports, rdma_files = read("rdma", lambda: parse_hardware.rdma(_text(parts, "rdma")), ((), False))
    gpus = parse_hardware.gpus(
        nvidia=_output(parts, "nvidia"),
        nvidia_head=_output(parts, "nvidia.head"),
        amd=_text(parts, "amd"),
        amd_smi=_output(parts, "amd.smi"),
        gaudi=_output(parts, "gaudi"),
        tt=_text(parts, "tt"),
        tt_smi=_output(parts, "tt.smi"),
        read=read,
    )
    amd, tt = _text(parts, "amd").splitlines(), _text(parts, "tt").splitlines()
    moments = [each.text for each in sections["now"]]
    facts = HostFacts(
        **read("system", lambda: _system(_text(parts, "system")), {}),
        root=root,
        root_trouble=trouble,
        forwarding=read("sshd", lambda: _forwarding(parts.get("sshd")), None),
        clock_offset_s=read("now", lambda: _offset(moments, sent, received), None),
        disks=read("disks", lambda: _disks(_text(parts, "disks")), ()),
        docker=_docker(parts.get("docker"), _text(parts, "free"), read),
        gpus=gpus,
        pci_devices=read("pci", lambda: parse_hardware.pci_devices(_text(parts, "pci")), ()),
        tools=tuple(
            Tool(name=name, exit_code=parts[key].exit_code, output=parts[key].message)
            for key, name in _TOOLS.items()
            if key in parts
        ),
        nvidia_toolkit=read("nvidia.ctk", lambda: _version(parts.get("nvidia.ctk")), None),
        kfd="kfd" in amd,
        amdgpu=next((line[7:].strip() for line in amd if line.startswith("module ")), None),
        tenstorrent_devices=sum(line.startswith("device ") for line in tt),
        interfaces=interfaces,
        sees_addresses=sees_addresses,
        rdma_ports=rdma_ports,
        rdma_files=rdma_files,
    )
    return facts.model_copy(update={"unread": tuple(read.unread)})


class _Reader:
    """Parses the parts of the output one by one, and records those that cannot be parsed.

    A host may print anything: an exception of a parser drops this part only, and is reported with it.
    """

    def __init__(self) -> None:
        self.unread: list[UnreadOutput] = []

    def __call__(self, part: str, parse: Callable[[], T], otherwise: T) -> T:
        try:
            return parse()
        except Exception as error:  # noqa: BLE001 - see above
            self.note(part, f"{type(error).__name__}: {error}")
            return otherwise

    def note(self, part: str, why: str) -> None:
        self.unread.append(
            UnreadOutput(part=part, tool=_SOURCES.get(part, part), why=" ".join(why.split())[:200])
        )


_SOURCES = {
    "nvidia": "nvidia-smi",
    "amd.smi": "amd-smi or rocm-smi",
    "gaudi": "hl-smi",
    "tt.smi": "tt-smi",
    "amd": "/sys/class/kfd",
    "tt": "/dev/tenstorrent",
    "nvidia.ctk": "nvidia-ctk",
    "docker": "docker info",
    "net": "ip addr",
    "rdma": "/sys/class/infiniband",
    "pci": "lspci",
    "sshd": "sshd -T",
    "system": "/proc and /etc",
    "disks": "/sys/block",
    "now": "date",
}

_TOOLS = {
    "nvidia": "nvidia-smi",
    "amd.smi": "amd-smi",
    "gaudi": "hl-smi",
    "tt.smi": "tt-smi",
    "dcgm": "dcgmi",
}


def _read_sections(text: str) -> dict[str, list[FactsSection]]:
    sections: dict[str, list[FactsSection]] = {}
    name, lines = "", []
    for line in text.splitlines():
        if line.startswith("@@= "):
            code = line[4:].strip()
            section = FactsSection(
                "\n".join(lines).strip(), int(code) if re.fullmatch("[0-9]{1,3}", code) else 1
            )
            sections.setdefault(name, []).append(section)
        elif line.startswith("@@"):
            # `@@root HOW` carries its text in the heading.
            name, _, head = line[2:].partition(" ")
            lines = [head] if head else []
        else:
            lines.append(line)
    return sections


def _text(parts: Mapping[str, FactsSection], name: str) -> str:
    return parts[name].text if name in parts else ""


def _output(parts: Mapping[str, FactsSection], name: str) -> str | None:
    """The output of a tool; None when the tool is missing or failed."""
    return parts[name].text if name in parts and parts[name].exit_code == 0 else None


def _root(section: FactsSection | None) -> tuple[Literal["root", "sudo", "no"], str | None]:
    text = section.text if section else ""
    if text == "root":
        return "root", None
    if text == "sudo":
        return "sudo", None
    return "no", text.removeprefix("no").strip() or None


def _system(text: str) -> dict[str, Any]:
    lines = text.splitlines()
    kernel_name, _, arch = lines[0].partition(" ") if lines else ("", "", "")
    words = dict(line.split(" ", 1) for line in lines[2:] if " " in line)
    memlock = words.get("memlock", "")
    return {
        "os": kernel_name,
        "arch": "aarch64" if arch == "arm64" else arch,
        "kernel": lines[1] if len(lines) > 1 else "",
        "distribution": words.get("os"),
        "machine_id": words.get("machine", "").strip() or None,
        "cpus": _int(words.get("cpus")),
        "memory_mib": _int(words.get("MemTotal")) // 1024,
        "hugepages": _int(words.get("HugePages_Total")),
        "hugepage_kib": _int(words.get("Hugepagesize")),
        "memlock_kib": _int(memlock) if memlock[:1].isdecimal() else None,
    }


def _disks(text: str) -> tuple[HostDisk, ...]:
    rows = (line.split() for line in text.splitlines() if line.startswith("disk "))
    return tuple(
        HostDisk(name=row[1], size_gib=_int(row[2]) >> 21, rotational=row[3:] == ["1"])
        for row in rows
        if len(row) >= 3 and _int(row[2])
    )


def _docker(section: FactsSection | None, free: str, read: _Reader) -> Docker | None:
    """Docker's server as reported by its client; None without a client."""
    path = next((line[5:] for line in free.splitlines() if line.startswith("path ")), None)
    # POSIX: device, 1024-blocks, used, available, capacity, mount point.
    row = re.search(r"^\S.* +([0-9]{1,18}) +\d+ +(-?[0-9]{1,18}) +\d+% +\S", free, re.MULTILINE)
    size_mib, free_mib = (int(row.group(1)) >> 10, int(row.group(2)) >> 10) if row else (None, None)
    if section is None:
        return (
            None
            if free_mib is None
            else Docker(trouble="there is no docker command", size_mib=size_mib, free_mib=free_mib)
        )
    lines = section.text.splitlines()
    info_line = next((line for line in reversed(lines) if line.startswith("{")), "{}")
    info = read("docker", lambda: _object(info_line), {})
    version = read("docker", lambda: _text_of(info.get("ServerVersion")), None)
    messages = [
        *read("docker", lambda: _names(info.get("ServerErrors")), ()),
        *(line for line in lines if line and not line.startswith(("{", "cdi "))),
    ]
    if section.exit_code == 124:
        messages = ["the Docker server does not answer", *messages]
    return Docker(
        version=version,
        trouble=None if version else " ".join(messages)[:300] or f"exit code {section.exit_code}",
        root=read("docker", lambda: _text_of(info.get("DockerRootDir")), None) or path,
        size_mib=size_mib,
        free_mib=free_mib,
        runtimes=tuple(sorted(read("docker", lambda: _names(info.get("Runtimes")), ()))),
        cdi=tuple(dict.fromkeys(line[4:] for line in lines if line.startswith("cdi "))),
    )


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("it is no JSON object")
    return value


def _names(value: object) -> tuple[str, ...]:
    """Names in a list, or the keys of a table. Raises TypeError, UnicodeError."""
    if value is None:
        return ()
    if not isinstance(value, (list, dict)):
        raise TypeError(f"{value!r} stands where names are expected")
    return tuple(name for name in map(_text_of, value) if name)


def _text_of(value: object) -> str | None:
    """Text, None for no value. Raises TypeError, and UnicodeError for an incomplete character."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where text is expected")
    value.encode()
    return value


def _forwarding(section: FactsSection | None) -> str | None:
    words = dict(
        line.lower().split(None, 1) for line in (section.text if section else "").splitlines() if " " in line
    )
    if words.get("disableforwarding") == "yes":
        return "no"
    allowed = words.get("allowtcpforwarding")
    return "yes" if allowed == "all" else allowed


def _offset(moments: list[str], sent: float | None, received: float | None) -> float | None:
    """The smallest offset of the host's clock in seconds: both of its readings lie between ours."""
    readings = [
        float(match.group()) for text in moments if (match := re.match(r"[0-9]{1,12}(\.[0-9]{1,9})?", text))
    ]
    if not readings or sent is None or received is None:
        return None
    lowest, highest = readings[-1] - received, readings[0] - sent
    return round(lowest if lowest > 0 else min(highest, 0.0), 3)


def _version(section: FactsSection | None) -> str | None:
    match = re.search(r"\d+\.\d+[\w.+-]*", section.text) if section and section.exit_code == 0 else None
    return match.group() if match else None


def _int(text: str | None) -> int:
    """A number printed by the kernel, at most 19 digits; 0 for other text."""
    match = re.match(r"\s*([0-9]{1,19})(?![0-9])", text or "")
    return int(match.group(1)) if match else 0
