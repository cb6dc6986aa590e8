"""Rules between the hosts of an SSH fleet."""

from __future__ import annotations

import os
import stat

from orch.spec.diagnostics import Related
from orch.spec.document.draft import Draft, Path_, folder_of
from orch.spec.grammar.hosts import folded_size
from orch.spec.models.ssh import Host
from orch.spec.rules.rule import Findings, Rule, fleet_of


def _hosts(draft: Draft) -> tuple[tuple[Path_, Host], ...]:
    config = fleet_of(draft).ssh_config
    return tuple(
        (("ssh_config", "hosts", index), host) for index, host in enumerate(config.hosts if config else ())
    )


def hosts_are_listed(draft: Draft) -> Findings:
    config = fleet_of(draft).ssh_config
    if config is not None and not config.hosts:
        yield draft.diagnostic(
            "ORCH142", ("ssh_config", "hosts"), "no hosts", hint="list at least one address"
        )


def hosts_differ(draft: Draft) -> Findings:
    """The same address and port twice; a jump host in between makes it another host."""
    config = fleet_of(draft).ssh_config
    first_of: dict[tuple[object, ...], Path_] = {}
    for path, host in _hosts(draft):
        port = host.port or (config.port if config else 22)
        for name in host.hostnames:
            key = (name, port, host.proxy_jump)
            if key in first_of:
                earlier = draft.span(first_of[key])
                yield draft.diagnostic(
                    "ORCH143",
                    path,
                    f"host {name} is listed twice, first at {earlier.line}:{earlier.column}",
                    hint="remove one of them",
                    related=(Related(earlier, "listed here first"),),
                )
                break
            first_of[key] = path


def internal_addresses_of_all(draft: Draft) -> Findings:
    hosts = _hosts(draft)
    having = [path for path, host in hosts if host.internal_ip is not None]
    without_address = [host.hostname for _, host in hosts if host.internal_ip is None]
    if having and without_address:
        few = ", ".join(without_address[:5]) + (", …" if len(without_address) > 5 else "")
        yield draft.diagnostic(
            "ORCH144",
            (*having[0], "internal_ip"),
            f"`internal_ip` must be on all hosts or none; missing on {few}",
            key=True,
            hint="add it to each, or give the `network` they share",
        )
    for path, host in hosts:
        if host.internal_ip is not None and folded_size(host.hostname) > 1:
            yield draft.diagnostic(
                "ORCH144",
                (*path, "internal_ip"),
                f"one `internal_ip` cannot belong to {folded_size(host.hostname)} hosts",
                key=True,
                hint="write the hosts one by one, or give the `network` they share",
            )


def internal_addresses_differ(draft: Draft) -> Findings:
    first: dict[str, Path_] = {}
    for path, host in _hosts(draft):
        if host.internal_ip is None:
            continue
        if host.internal_ip in first:
            earlier = draft.span((*first[host.internal_ip], "internal_ip"))
            yield draft.diagnostic(
                "ORCH143",
                (*path, "internal_ip"),
                f"{host.internal_ip} is given to two hosts, first at {earlier.line}:{earlier.column}",
                hint="each host has its own address",
                related=(Related(earlier, "given here first"),),
            )
        first.setdefault(host.internal_ip, path)


def network_or_addresses(draft: Draft) -> Findings:
    config = fleet_of(draft).ssh_config
    having = next((path for path, host in _hosts(draft) if host.internal_ip is not None), None)
    if config is not None and config.network is not None and having is not None:
        yield draft.diagnostic(
            "ORCH145",
            ("ssh_config", "network"),
            "`network` and `internal_ip` say the same thing in two ways",
            key=True,
            hint="use one of them",
            related=(Related(draft.span((*having, "internal_ip"), key=True), "an `internal_ip`"),),
        )


def key_files_are_usable(draft: Draft) -> Findings:
    """A private key that is not there, or that others may read: ssh refuses it."""
    config = fleet_of(draft).ssh_config
    if config is None:
        return
    places: list[tuple[Path_, str | None]] = [(("ssh_config", "identity_file"), config.identity_file)]
    places += [((*path, "identity_file"), host.identity_file) for path, host in _hosts(draft)]
    for base, jumps in (
        (("ssh_config", "proxy_jump"), config.proxy_jump),
        *(((*path, "proxy_jump"), host.proxy_jump) for path, host in _hosts(draft)),
    ):
        for index, jump in enumerate(jumps or ()):
            many = len(jumps or ()) > 1
            places.append(
                ((*base, index, "identity_file") if many else (*base, "identity_file"), jump.identity_file)
            )
    reported: set[str] = set()
    for path, file in places:
        if file is not None and file not in reported and "${{" not in file:
            reported.add(file)
            yield from _key_file(draft, path, file)


def _key_file(draft: Draft, path: Path_, file: str) -> Findings:
    folder, fence = folder_of(draft), draft.context.fence
    if fence is not None and (file.startswith("~") or not fence.holds(folder / file)):
        return  # told by `spec/loader/untrusted.py`
    where = os.path.join(folder, os.path.expanduser(file))
    severity = draft.missing
    try:
        mode = os.stat(where).st_mode
    except (OSError, ValueError):
        summary = f"there is no key file {file}"
        hint = "check the path, or remove the line to use the SSH agent"
        yield draft.diagnostic("ORCH151", path, summary, severity=severity, hint=hint)
        return
    if not stat.S_ISREG(mode):
        yield draft.diagnostic(
            "ORCH151", path, f"{file} is not a file", severity=severity, hint="name the private key"
        )
    elif mode & 0o077:
        yield draft.diagnostic(
            "ORCH152",
            path,
            f"others may read the key file {file}: ssh refuses it",
            severity=severity,
            hint=f"`chmod 600 {file}`",
        )


RULES = (
    Rule(("ssh_config",), hosts_are_listed),
    Rule(("ssh_config",), hosts_differ),
    Rule(("ssh_config",), internal_addresses_of_all),
    Rule(("ssh_config",), internal_addresses_differ),
    Rule(("ssh_config",), network_or_addresses),
    Rule(("ssh_config",), key_files_are_usable),
)
