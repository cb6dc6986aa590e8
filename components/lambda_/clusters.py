"""1-Click Clusters that exist: the hosts of one, behind its head node. Pure.

Lambda sells them by its console; its API makes none, and lists none. It tells the instances of the cluster
of an id; of a name, they are the instances without a public address whose names begin with it.
Sources: Lambda Cloud API 1.10, listInstances; docs.lambda.ai, 1-Click Clusters, Security posture: compute
nodes are reached through a management (head) node alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orch.catalog.fabrics import fabric
from orch.spec.findings import Finding, PlanErrors
from orch.spec.grammar.hosts import check_user
from orch.spec.grammar.values import Problem, check_name
from orch.spec.models import Fleet
from orch.spec.models.ssh import SshConfig
from orch.spec.suggest import few, hint_for

USER = "ubuntu"
"""Who logs in to Lambda's machines. Source: docs.lambda.ai, Connecting to instances."""

OPTIONS = ("cluster", "user", "identity_file")
_NUMBERED = re.compile(r"[-_]?(head|management|mgmt|node|worker|compute|gpu)?[-_]?\d*$")


@dataclass(frozen=True)
class Member:
    """An instance, as far as a cluster's hosts are made of it. `public` None: it is behind a head node;
    `cluster`: what its name begins with."""

    name: str
    type: str
    gpus: int
    address: str | None
    public: str | None

    @property
    def cluster(self) -> str:
        return _NUMBERED.sub("", self.name) or self.name

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Member:
        """By a document of the API."""
        kind = row["instance_type"]
        name = str(row.get("name") or row.get("hostname") or row["id"])
        gpus = int(kind["specs"]["gpus"])
        return cls(name, str(kind["name"]), gpus, row.get("private_ip"), row.get("ip"))


def option(fleet: Fleet) -> tuple[int, Mapping[str, object]] | None:
    """The fleet's `backend_options` for Lambda, with their place in the list."""
    for index, each in enumerate(fleet.backend_options):
        if each.get("type") == "lambda":
            return index, each
    return None


def named_cluster(fleet: Fleet) -> str | None:
    """The cluster that the file names, None where it has no options for Lambda. Raises PlanErrors (ORCH230)
    for options that cannot be read."""
    found = option(fleet)
    if found is None:
        return None
    index, written = found
    if wrong := list(_misread(index, written)):
        raise PlanErrors(wrong)
    return str(written["cluster"])


def _misread(index: int, written: Mapping[str, object]) -> Iterator[Finding]:
    path = f"backend_options[{index}]"
    for key, value in written.items():
        if key != "type" and key not in OPTIONS:
            hint = hint_for(key, OPTIONS) or "it has `cluster`, `user` and `identity_file`"
            yield Finding("ORCH230", f"{path}.{key}", f"lambda has no option '{key}'", hint=hint)
        elif not isinstance(value, str) or not value:
            yield Finding("ORCH230", f"{path}.{key}", f"`{key}` is text", hint=f"write `{key}: …`")
        elif key == "user":
            try:
                check_user(value)
            except Problem as problem:
                yield Finding("ORCH230", f"{path}.user", problem.summary, hint=problem.hint)


def known_clusters(members: Sequence[Member]) -> dict[str, list[Member]]:
    """The clusters among instances, by name: some are behind one that has a public address."""
    groups: dict[str, list[Member]] = {}
    for each in members:
        groups.setdefault(each.cluster, []).append(each)
    return {
        name: group
        for name, group in groups.items()
        if any(each.public is None and each.gpus for each in group)
    }


def hosts_of(fleet: Fleet, by_id: Sequence[Member], members: Sequence[Member]) -> SshConfig:
    """The hosts of the cluster that the file names, as `ssh_config` would. `by_id`: the instances of the
    cluster whose id that is, `members`: all instances.

    Raises PlanErrors (ORCH230) where there is none of that name, are several, or none can be reached.
    """
    found = option(fleet)
    assert found is not None  # the file names one
    index, written = found
    name, path = str(written["cluster"]), f"backend_options[{index}].cluster"
    clusters = known_clusters(members)
    own = list(by_id) or clusters.get(name)
    if not own:
        names = sorted(clusters)
        raise _wrong(
            path,
            f"the account has no 1-Click Cluster {name}",
            detail=f"there are {few(names)}" if names else "there is none: no instance is behind another",
            hint=hint_for(name, names) or "name it as its nodes' names begin, or by its id",
        )
    often = Counter(each.name for each in own)
    if not by_id and (twice := sorted(each for each in often if often[each] > 1)):
        raise _wrong(
            path,
            f"the account has several 1-Click Clusters {name}",
            detail=f"there are several instances {few(twice)}",
            hint="name it by its id, as Lambda's console shows it",
        )
    heads = [each for each in own if each.public is not None and not each.gpus]
    workers = [each for each in own if each.gpus and each.address]
    if not heads or not workers:
        lacks = "no head node with a public address" if not heads else "no node with GPUs and an address"
        raise _wrong(
            path,
            f"the 1-Click Cluster {name} has {lacks}",
            hint="look at it in Lambda's console; hosts that you reach otherwise go into `ssh_config`",
        )
    workers.sort(key=lambda each: _in_order(each.name))
    user = str(written.get("user") or USER)
    head = min(heads, key=lambda each: each.name)
    key = {"identity_file": written["identity_file"]} if "identity_file" in written else {}
    hosts = [_host(each, called) for each, called in zip(workers, _names(workers), strict=True)]
    jump = {"hostname": head.public, "user": user, **key}
    try:
        return SshConfig.model_validate({"user": user, **key, "proxy_jump": jump, "hosts": hosts})
    except ValidationError as error:
        raise _wrong(
            path,
            f"the addresses of the 1-Click Cluster {name} do not read",
            detail=f"{head.public} of its head, {few([str(each.address) for each in workers])} of its nodes",
            hint="look at it in Lambda's console; hosts that you reach otherwise go into `ssh_config`",
        ) from error


def _wrong(path: str, summary: str, *, hint: str, detail: str | None = None) -> PlanErrors:
    return PlanErrors([Finding("ORCH230", path, summary, detail=detail, hint=hint)])


def _names(workers: Sequence[Member]) -> list[str]:
    """What the hosts are called: as their instances are, or by their address where that cannot be a host's
    name, or several have it."""
    called = [_spelled(each.name) for each in workers]
    often = Counter(called)
    return [
        name if often[name] == 1 and _reads(name) else f"node-{_spelled(str(each.address))}"
        for each, name in zip(workers, called, strict=True)
    ]


def _spelled(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _reads(name: str) -> bool:
    try:
        check_name(name)
    except Problem:
        return False
    return True


def _host(each: Member, name: str) -> dict[str, Any]:
    known = fabric("infiniband", each.type)
    return {
        "hostname": each.address,
        "name": name,
        "internal_ip": each.address,
        "env": dict(known.env) if known else {},
    }


def _in_order(name: str) -> tuple[str, int]:
    """`node-10` comes after `node-9`."""
    digits = re.search(r"\d+$", name)
    return name[: digits.start()] if digits else name, int(digits[0]) if digits else 0
