"""Checks of the machine itself: the login, root, system, disk, clock and Docker. Pure."""

from __future__ import annotations

from orch.runner.hosts.checks.types import Observed, Outcome, Result, Wanted, failed, passed, skipped, warned
from orch.runner.hosts.host_facts import HostFacts
from orch.spec.errors import OrchError


def connect(observed: Observed) -> Outcome:
    """The one check that is judged without facts."""
    if observed.error is not None:
        error = observed.error
        return Outcome(Result.FAIL, told(error), error.hint, error.code)
    took = f"the login took {observed.connected_s or 0:.1f} s"
    if observed.trusted is not None:
        return passed(f"{took}; its host key {observed.trusted} is as the host says, and not pinned yet")
    return passed(took)


def told(error: OrchError) -> str:
    """An error in one line: what, why and where."""
    parts = [error.summary, *([error.detail] if error.detail and error.detail not in error.summary else [])]
    line = "; ".join(" ".join(part.split()) for part in parts)
    return f"{line} ({error.where})" if error.where else line


def forwarding(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.forwarding is None:
        if facts.root == "no":
            return skipped("needs sudo.nopasswd: sshd's settings are root's to read")
        return skipped("`sshd -T` could not be run on it")
    told = f"AllowTcpForwarding {facts.forwarding}"
    # What jobs' ports and hosts behind this one need is `local`, in sshd's word.
    return passed(told) if facts.forwarding in ("yes", "local") else failed(told)


def sudo(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.root == "root":
        return passed("the login is root")
    if facts.root == "sudo":
        return passed("sudo asks for no password")
    return failed(facts.root_trouble or "sudo gives no root")


def system(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    named = f"{facts.os} {facts.arch}, {facts.distribution or 'unknown distribution'}, kernel {facts.kernel}"
    if facts.os != "Linux" or facts.arch not in ("x86_64", "aarch64"):
        return failed(f"{named}: Linux on x86_64 or aarch64 is needed")
    return passed(named)


def unique(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.machine_id is None:
        if not wanted.machine_ids:
            return skipped("nodes in containers have no machine id")
        return failed("/etc/machine-id is empty or missing", "sudo systemd-machine-id-setup")
    if observed.twins:
        return failed(f"the same machine id as {', '.join(observed.twins)}: {facts.machine_id}")
    return passed(f"machine id {facts.machine_id}")


def disk(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if facts.docker is None or facts.docker.free_mib is None:
        return skipped("the free space could not be read")
    free = facts.docker.free_mib / 1024
    where = facts.docker.root or "/var/lib/docker"
    told = f"{free:.1f} GB free in {where}"
    hint = "free some (`sudo docker system prune`), or move it: `data-root` in /etc/docker/daemon.json"
    if free < wanted.disk_min_gib:
        return failed(f"{told}, {wanted.disk_min_gib:g} GB are needed", hint)
    if free < wanted.disk_warn_gib:
        return warned(f"{told}, images and checkpoints may need {wanted.disk_warn_gib:g} GB", hint)
    return passed(told)


def clock(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    offset = facts.clock_offset_s
    if offset is None:
        return skipped("the host's clock could not be read")
    if abs(offset) > wanted.clock_s:
        return warned(f"{_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} this machine")
    return passed("the same time as here, as far as can be told" if not offset else f"{offset:+.1f} s")


def docker(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    found = facts.docker
    if found is not None and found.version:
        return passed(f"Docker {found.version}")
    trouble = found.trouble if found and found.trouble else "there is no docker command"
    if "no docker command" in trouble:
        return failed(trouble, "install Docker: https://docs.docker.com/engine/install/")
    if facts.root == "no" and "permission denied" in trouble.lower():
        return skipped("needs sudo.nopasswd: this login may not talk to Docker")
    return failed(trouble)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
