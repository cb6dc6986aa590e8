"""Diagnostics: what is wrong, where, why and what to write instead; and how they are shown.

A code is stable and never reused. `CODES` is the one list of them; each module that reports names its codes
from here.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from orch.spec.grammar.values import encodable

CODES = {
    # YAML
    "ORCH100": "the file cannot be read",
    "ORCH101": "not valid YAML",
    "ORCH102": "a key is set twice",
    "ORCH103": "a tab indents a line",
    "ORCH104": "an alias without its anchor",
    "ORCH105": "larger, deeper or more expanded than a configuration may be",
    "ORCH106": "not UTF-8 text",
    "ORCH107": "nothing in it",
    "ORCH108": "not a mapping of text keys",
    "ORCH109": "a YAML tag",
    # one property
    "ORCH110": "unknown property",
    "ORCH111": "not one of the words allowed here",
    "ORCH112": "another kind of value is expected",
    "ORCH113": "a required property is missing",
    "ORCH114": "a type of document that orch does not run",
    "ORCH115": "not a name",
    "ORCH116": "unknown backend",
    "ORCH117": "too few or too many entries",
    "ORCH118": "part of the language, not supported by this version",
    "ORCH119": "a number out of bounds",
    "ORCH120": "not a size",
    "ORCH121": "not a GPU or CPU request",
    "ORCH122": "a range that runs backwards or has no end",
    "ORCH123": "node counts out of order",
    "ORCH124": "not a duration",
    "ORCH125": "not the indexes of an array",
    "ORCH126": "not an amount of money",
    "ORCH127": "not an environment entry",
    "ORCH128": "not a tag",
    "ORCH129": "not a path that fits here",
    "ORCH130": "unknown namespace in an interpolation",
    "ORCH131": "a secret in a command",
    "ORCH132": "a secret in plain text",
    "ORCH133": "a value that is not known in this place",
    "ORCH134": "an interpolation without its end",
    "ORCH135": "not a command line",
    "ORCH136": "a node that the groups do not have",
    "ORCH137": "not a signal",
    "ORCH138": "not a schedule",
    "ORCH139": "not an address, a port or a public key",
    # properties together
    "ORCH140": "for provisioned nodes, on a fleet of existing hosts",
    "ORCH141": "a fleet without nodes",
    "ORCH142": "an SSH fleet without hosts",
    "ORCH143": "one host or address twice",
    "ORCH144": "`internal_ip` on some hosts only",
    "ORCH145": "`network` and `internal_ip` together",
    "ORCH146": "not a private network or address",
    "ORCH147": "blocks that do not divide the hardware",
    "ORCH148": "more than one image",
    "ORCH149": "a reservation and spot",
    "ORCH150": "more than one launcher",
    "ORCH151": "a key file that is not there",
    "ORCH152": "a key file that others may read",
    "ORCH153": "one path, port or backend twice",
    "ORCH154": "a task with nothing to run",
    "ORCH155": "a launcher without its program",
    "ORCH156": "an elastic range larger than the run",
    "ORCH157": "one property under two spellings",
    "ORCH158": "properties of which exactly one is needed",
    "ORCH159": "a property without the one it goes with",
    "ORCH160": "groups beside what they replace",
    "ORCH161": "a signal before the run begins",
    # one property again
    "ORCH162": "text that cannot stand here: unseen characters, more than a line, an option's dash",
    # a task
    "ORCH163": "a link that leads out of the folder",
    "ORCH164": "a command of Slurm",
    # documents together
    "ORCH170": "two documents of one type and name",
    "ORCH171": "a host in two fleets",
    "ORCH172": "an unknown name in an interpolation",
    "ORCH173": "an environment variable that is not set",
    "ORCH174": "no run of this name in the files",
    "ORCH175": "runs that wait for each other",
    # files that are not trusted
    "ORCH176": "a variable of the environment, in a file that is not trusted",
    "ORCH177": "a path out of the repository, in a file that is not trusted",
    "ORCH178": "a setting that reaches out, in a file that is not trusted",
    # accepted with a note
    "ORCH190": "a backend without a driver here",
    "ORCH191": "accepted, does nothing",
    "ORCH192": "a fleet without an upper bound",
    "ORCH193": "a variable that orch sets itself",
    "ORCH194": "a backend outside `orch.yml`",
    "ORCH196": "does nothing on local nodes",
    "ORCH197": "nodes that nothing adds yet",
    "ORCH198": "overruled by the launcher",
    "ORCH199": "a weekday that counts differently elsewhere",
    # offers
    "ORCH200": "no offer fits a fleet",
    "ORCH201": "no backend left that has a driver",
    "ORCH202": "an instance type the catalogue does not have",
    "ORCH203": "a GPU the catalogue does not have",
    "ORCH205": "a region or zone without an offer",
    "ORCH206": "a zone name that differs from account to account",
    "ORCH207": "a backend without prices in the catalogue",
    "ORCH208": "a machine type whose network cards are not known",
    "ORCH209": "a machine type that differs from the catalogue",
    "ORCH210": "more than this machine has",
    "ORCH211": "accelerators on local nodes",
    "ORCH212": "more nodes than this machine's network holds",
    "ORCH213": "no machine image for what a type carries",
    "ORCH214": "a placement group with a Capacity Block",
    "ORCH215": "a reservation outside a placement group",
    "ORCH216": "a reservation that ends",
    "ORCH217": "a reservation that has not begun",
    "ORCH218": "more nodes than one placement holds",
    "ORCH219": "a group of nodes that does not shrink",
    # network
    "ORCH220": "a subnet with too few addresses",
    "ORCH221": "public addresses with several network interfaces",
    "ORCH222": "fewer networks than a node has interfaces",
    "ORCH223": "a cluster without a fast interconnect",
    "ORCH224": "SSH open to the world",
    "ORCH225": "a network of another region or zone",
    "ORCH226": "a given network that does not serve",
    "ORCH227": "no given subnet in a zone",
    "ORCH228": "scripts larger than user data may be",
    "ORCH229": "a root disk smaller than its image",
    "ORCH230": "an option that the backend does not have",
    "ORCH231": "a tag that the cloud spells differently",
    "ORCH232": "a change that new nodes alone get",
    # run on fleet
    "ORCH241": "a distributed task on a fleet that is no cluster",
    "ORCH242": "a distributed task that asks for part of an instance",
    "ORCH243": "a job smaller than an instance that has no blocks",
    "ORCH244": "a task larger than its fleet",
    # money
    "ORCH281": "over the budget",
    "ORCH282": "a budget that cannot be checked",
    # credentials and quotas; capacity; what a cloud says
    "ORCH303": "no credentials, or refused ones",
    "ORCH304": "something the credentials may not do",
    "ORCH306": "a cloud's SDK that is not installed",
    "ORCH310": "too few vCPUs in the quota",
    "ORCH311": "too few Elastic IPs in the quota",
    "ORCH312": "too few network interfaces in the quota",
    "ORCH313": "a quota that is used up",
    "ORCH321": "a reservation smaller than the fleet",
    "ORCH322": "a reservation that is not there",
    "ORCH323": "a reservation of something else",
    "ORCH325": "no capacity",
    "ORCH356": "the cloud refused",
    "ORCH357": "the cloud refused a parameter",
    "ORCH358": "the cloud does not answer, or asks to wait",
    "ORCH359": "something is still in use, or not there yet",
    # existing hosts
    "ORCH360": "not one of a fleet's hosts can be taken",
    "ORCH361": "a host without exactly one address in the cluster's network",
    "ORCH362": "no one private network that all hosts share",
    "ORCH363": "a host key that is unknown or not the pinned one",
    "ORCH364": "no login over SSH (ssh.connect)",
    "ORCH365": "sshd forwards no connections (ssh.forwarding)",
    "ORCH366": "no root without a password (sudo.nopasswd)",
    "ORCH367": "an operating system that is not supported (host.os)",
    "ORCH368": "one machine id on several hosts (host.unique)",
    "ORCH369": "too little free disk (host.disk)",
    "ORCH370": "a clock that is off (host.clock)",
    "ORCH371": "Docker does not answer (docker.engine)",
    "ORCH372": "NVIDIA's driver lists no or too few GPUs, or is too old (nvidia.driver)",
    "ORCH373": "Docker without NVIDIA's runtime (nvidia.toolkit)",
    "ORCH374": "containers do not see the GPUs (nvidia.container)",
    "ORCH375": "no AMDGPU-DKMS driver (amd.driver)",
    "ORCH376": "Gaudi's driver lists no or too few cards (gaudi.driver)",
    "ORCH377": "Docker without Gaudi's runtime (gaudi.runtime)",
    "ORCH378": "Tenstorrent's driver lists no or too few cards (tt.driver)",
    "ORCH379": "no huge pages (tt.hugepages)",
    "ORCH380": "ports open to the outside (fw.external)",
    "ORCH381": "hosts' addresses or MTUs that do not make one network (net.internal)",
    "ORCH382": "hosts that do not reach each other (net.mesh)",
    "ORCH383": "RDMA ports that differ, or none (rdma.devices)",
    "ORCH384": "no health data of GPUs (gpu.health)",
    "ORCH385": "a host that is no longer as it was registered",
    "ORCH386": "a node that runs are on",
    "ORCH387": "a host that could not be left as it was found",
    "ORCH388": "a host key that nobody has accepted",
    "ORCH391": "a node whose preparation failed",
}


class Severity(str, Enum):
    """How bad it is: an error stops everything, a warning stops only under `--strict`, a note never."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Span:
    """A piece of a file. Lines and columns count from 1; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Places:
    """Where spans begin, to be asked often."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts = sorted({(span.file, span.line, span.column) for span in spans})

    def within(self, span: Span) -> bool:
        """Whether one of them begins in `span`."""
        first = bisect_left(self._starts, (span.file, span.line, span.column))
        end = (span.file, span.end_line, span.end_column)
        return first < len(self._starts) and self._starts[first] <= end


@dataclass(frozen=True)
class Related:
    """Another place that has to do with it, and why."""

    span: Span
    message: str


@dataclass(frozen=True)
class Diagnostic:
    """One mistake. `excerpt` is the source line it is on, kept so that stdin can be shown too.

    `path` is the property (`resources.gpu`, `files[0].path`), `replacement` the exact text to put at `span`
    when that is safe without a second look.
    """

    code: str
    span: Span
    summary: str
    severity: Severity = Severity.ERROR
    path: str = ""
    detail: str | None = None
    hint: str | None = None
    replacement: str | None = None
    related: tuple[Related, ...] = ()
    excerpt: str | None = None

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        return (self.span.file, self.span.line, self.span.column, self.code, self.summary)

    def as_dict(self) -> dict[str, object]:
        """The record as it appears in JSON."""
        return {
            **_place(self.span),
            "path": self.path,
            "severity": self.severity.value,
            "code": self.code,
            "summary": self.summary,
            "detail": self.detail,
            "hint": self.hint,
            "replacement": self.replacement,
            "related": [{**_place(other.span), "message": other.message} for other in self.related],
        }


def ordered(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """By file, line and column, each once."""
    return tuple(dict.fromkeys(sorted(diagnostics, key=lambda diagnostic: diagnostic.order)))


def strict(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The same with every warning made an error."""
    return tuple(
        replace(diagnostic, severity=Severity.ERROR)
        if diagnostic.severity is Severity.WARNING
        else diagnostic
        for diagnostic in diagnostics
    )


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """`{"schema": 1, "diagnostics": [...]}`, in order."""
    records = [diagnostic.as_dict() for diagnostic in ordered(diagnostics)]
    return json.dumps({"schema": 1, "diagnostics": records}, indent=2, ensure_ascii=False)


def render_human(diagnostics: Iterable[Diagnostic]) -> str:
    """What a person reads: place, message, the source line with a caret, the reason and the way out."""
    return "\n".join(_render_one(diagnostic) for diagnostic in ordered(diagnostics))


def property_path(parts: Iterable[str | int]) -> str:
    """`("files", 0, "path")` as `files[0].path`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _place(span: Span) -> dict[str, object]:
    return {
        "file": encodable(span.file),
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


_WIDEST = 110


def _render_one(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    lines = [_printable(f"{span}: {diagnostic.severity.value} {diagnostic.code}: {diagnostic.summary}")]
    if diagnostic.excerpt is not None:
        lines += _excerpt(diagnostic.excerpt, span)
    if diagnostic.detail:
        lines += (f"  why: {diagnostic.detail}").split("\n")
    lines += [_printable(f"  see: {other.span}: {other.message}") for other in diagnostic.related]
    if diagnostic.hint:
        lines.append(_printable(f"  hint: {diagnostic.hint}"))
    return "\n".join(lines)


def _excerpt(line: str, span: Span) -> list[str]:
    start = min(max(span.column - 1, 0), len(line))
    end = span.end_column - 1 if span.end_line == span.line else len(line)
    end = max(min(end, len(line.rstrip())), start + 1)
    cut = 0
    if len(line) > _WIDEST:
        cut = max(0, min(start - 30, len(line) - _WIDEST))
        line = ("…" if cut else "") + line[cut + bool(cut) : cut + _WIDEST]
        start, end = start - cut, min(end - cut, _WIDEST)
    margin = str(span.line)
    before, marked = line[:start], line[start:end]
    caret = " " * _width(before) + "^" * max(_width(marked), 1)
    return [f"  {margin} | {_printable(line)}".rstrip(), f"  {' ' * len(margin)} | {caret}"]


def _printable(text: str) -> str:
    """A tab as one space; what a terminal would act on (escape sequences in a hostile file) as a question
    mark.
    """
    return "".join(" " if char == "\t" else char if char.isprintable() else "?" for char in text)


def _width(text: str) -> int:
    """Terminal cells: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
