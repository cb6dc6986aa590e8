"""Each property of each model, for each backend: refused by name, or looked at by what plans and runs.

Generated from the models: a property that is added is asked for here at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import aws_cases
import gcp_cases
import pulumi
import pulumi.runtime
import pytest
from leaves import Leaf, leaves, values_of, written
from tracing import traced

from orch.components.aws import wanted as aws_wanted
from orch.components.clouds import Cloud, CloudFleet, compiled, scripts
from orch.components.explain import NOTHING
from orch.components.gcp import wanted as gcp_wanted
from orch.components.gcp.capacity import max_wait_s
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import plan as plan_local
from orch.components.plan import Order, PlanError, Previous
from orch.components.ssh.facts import SshFacts
from orch.components.ssh.facts import ask as ask_hosts
from orch.components.ssh.plan import plan as plan_ssh
from orch.runner.hosts.described import Docker, Gpu, HostFacts
from orch.runner.hosts.network import ClusterNetwork
from orch.runner.hosts.network import Place as Address
from orch.runner.hosts.survey import HostReport, Survey
from orch.runner.hosts.targets import Target, names
from orch.spec.diagnostics import property_path
from orch.spec.errors import OrchError
from orch.spec.load import Loaded, load_paths
from orch.spec.models import Fleet, Range
from orch.spec.models.backends import AwsBackend, GcpBackend
from orch.spec.models.base import Section
from orch.spec.state import NodeState
from orch.spec.unsupported import not_acted_on

BASES: dict[str, dict[str, Any]] = {
    "local": {"backends": ["local"], "nodes": "2"},
    "ssh": {"ssh_config": {"hosts": ["127.0.0.2", "127.0.0.3"], "port": "1", "connect_timeout": "1s"}},
    "aws": {
        "backends": ["aws"],
        "nodes": "2",
        "placement": "cluster",
        "regions": ["us-east-1"],
        "resources": {"gpu": "H100:8"},
    },
    "gcp": {
        "backends": ["gcp"],
        "nodes": "2",
        "placement": "cluster",
        "resources": {"gpu": "H100:8"},
    },
}
# Values that mean something to a cloud, or to the nodes of these tests; tried before those of `leaves`.
MEANT = ("us-east-1", "p5.48xlarge", "a3-megagpu-8g", "H100:8", "H100", "nvidia", "80GB", "640GB", "8", "x86")
NOTHING_TO_ACT_ON = {
    # What a document is, and what it is called: read as the document is found.
    ("Fleet", "type"),
    ("Task", "type"),
    ("Fleet", "backends"),
    # Which entry of a list it is.
    *(
        (name, "type")
        for name in ("LocalBackend", "AwsBackend", "GcpBackend", "AwsDefaultCreds", "DefaultCreds")
    ),
    ("AccessKeyCreds", "type"),
    ("GcpServiceAccountCreds", "type"),
}


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in more.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def holders(model: Section, leaf: Leaf) -> Iterator[tuple[Section, str]]:
    """The objects on the way to a leaf, each with the attribute that leads on; the leaf's own comes last."""
    here: Any = model
    for step in leaf.steps:
        if not isinstance(here, Section) or step.name not in type(here).model_fields:
            return
        yield here, step.name
        here = here.__dict__[step.name]
        for part in step.within:
            if isinstance(part, int) and isinstance(here, tuple):
                here = here[part] if len(here) > part else None
            elif isinstance(here, dict):
                here = here.get(part)


def about(path: str, leaf: Leaf) -> bool:
    """Whether a place in a file is that of a leaf, or of what it stands in."""
    own = property_path(leaf.path)
    return bool(path) and (own == path or own.startswith((f"{path}.", f"{path}[")) or path.startswith(own))


def documents(folder: Path, leaf: Leaf, base: Mapping[str, Any]) -> Iterator[tuple[str, Loaded]]:
    """Documents of a backend that hold something else than the default at a leaf; wrong ones too."""
    last = leaf.steps[-1]
    default = last.owner.model_fields[last.name].get_default(call_default_factory=False)
    for value in (*MEANT, *values_of(leaf)):
        for document in leaf.documents(value):
            whole = merged(base, document)
            if leaf.kind == "fleet" and leaf.path[0] != "nodes":
                whole = {**whole, "nodes": base.get("nodes")}
            loaded = load_paths([written(folder, leaf, whole)], environ={})
            if loaded.documents and not loaded.failed:
                *_, (owner, name) = holders(loaded.documents[0].model, leaf)
                if owner.__dict__[name] == default:
                    continue
            yield value, loaded


def acted_on(
    folder: Path, leaf: Leaf, base: Mapping[str, Any], act: Callable[[Any, Path], None]
) -> tuple[bool, str]:
    """Whether a property is refused by name or looked at, and how that was seen."""
    wrong: set[str] = set()
    for value, loaded in documents(folder, leaf, base):
        told = [each for each in loaded.diagnostics if about(each.path, leaf)]
        if loaded.failed or not loaded.documents:
            if any(each.code == "ORCH140" for each in loaded.diagnostics):
                return True, f"{value}: ORCH140"
            wrong |= {each.code for each in told}
            continue
        (document, *_) = loaded.documents
        if found := [each for each in (*not_acted_on(document), *told) if about(each.path, leaf)]:
            return True, f"{value}: {found[0].code}"
        said = ""
        with traced() as reads:
            try:
                act(document.model, folder)
            except PlanError as error:
                findings = getattr(error, "findings", (error,))
                said = next((each.code for each in findings if about(each.path, leaf)), "")
            except OrchError:
                pass
        *_, (owner, name) = holders(document.model, leaf)
        if said:
            return True, f"{value}: {said}"
        held = owner.__dict__[name]
        if not reads.of(owner, name):
            return False, f"{value}: nothing looks at it"
        if isinstance(held, Range):
            unseen = [
                end for end in ("min", "max") if getattr(held, end) is not None and not reads.of(held, end)
            ]
            if unseen:
                return False, f"{value}: nothing looks at its {unseen[0]}"
        return True, f"{value}: read"
    return single(leaf), f"nothing valid can be written: {sorted(wrong)}"


def single(leaf: Leaf) -> bool:
    """Whether there is one thing to write alone, which is so anyway."""
    return len({*get_args(leaf.annotation)}) == 1


def plan_on_aws(fleet: Fleet, folder: Path) -> None:
    class OnAws(aws_cases.Case):
        @property
        def fleet(self) -> Fleet:
            return fleet

    made = plan_on_cloud(OnAws("given", {}), lambda *asked: aws_wanted.question(*asked, "scope"), folder)
    if fleet.__dict__["network"] is not None:
        register_on_aws(made, AwsBackend())


def plan_on_gcp(fleet: Fleet, folder: Path) -> None:
    class OnGcp(gcp_cases.Case):
        @property
        def fleet(self) -> Fleet:
            return fleet

    max_wait_s(fleet)
    made = plan_on_cloud(OnGcp("given", {}), gcp_wanted.question, folder)
    if fleet.__dict__["network"] is not None:
        register_on_gcp(made, GcpBackend())


def plan_on_cloud(case: Any, question: Callable[..., object], folder: Path) -> Any:
    places = case.candidates()
    question(case.fleet, case.settings, places[0], Previous())
    scripts(case.fleet, folder)
    made = CloudFleet(case.plan(), places[0], {}, lambda: None, lambda names, running: None)  # type: ignore[arg-type,return-value]
    compiled(case.fleet, Cloud("node", (), lambda text: None, NOTHING), places, lambda place: made)
    return made.plan


class Given(pulumi.runtime.Mocks):
    """Resources that get what a cloud would give them."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        more: dict[str, Any] = {"arn": f"arn:{args.name}", "latestVersion": 1, "instanceId": args.name}
        if args.typ == "orch:index:Keys":
            more |= {"client_private_key": "private", "client_public_key": "ssh-ed25519 AAAA me"}
            more |= {"host_seed": "ab" * 32}
        if "nstance" in args.typ:
            nic = {"networkIp": "10.0.0.9", "accessConfigs": [{"natIp": "203.0.113.7"}]}
            more |= {"privateIp": "10.0.0.9", "publicIp": "203.0.113.7", "networkInterfaces": [nic]}
            more |= {"primaryNetworkInterfaceId": f"eni-{args.name}", "selfLinkUnique": args.name}
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"{args.token} is asked inside the program")


def registered(make: Callable[[], Any]) -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(Given(), project="tests", stack="lab")

    @pulumi.runtime.test
    def run() -> Any:
        return make().state.apply(lambda state: None)

    run()


def register_on_aws(plan: Any, settings: AwsBackend) -> None:
    from orch.components.aws.resources import AwsFleet

    registered(lambda: AwsFleet(plan, settings, lambda ids: {}))


def register_on_gcp(plan: Any, settings: GcpBackend) -> None:
    from orch.components.gcp.resources import GcpFleet

    registered(lambda: GcpFleet(plan, settings, lambda group, count: ()))


def plan_locally(fleet: Fleet, folder: Path) -> None:
    plan_local(fleet, LocalFacts(cpus=64, memory_mib=1 << 20, node_image="orch/node"), Previous(), "abc")


def plan_hosts(fleet: Fleet, folder: Path) -> None:
    """Asked where nothing listens, and planned as if all were fit."""
    ask_hosts(fleet, folder)
    plan_ssh(Order(fleet, (), Previous(), "abc", root=folder, folder=folder), fit_hosts(fleet))


def fit_hosts(fleet: Fleet) -> SshFacts:
    """What hosts without a fault would have said."""
    assert fleet.ssh_config is not None
    cards = (Gpu(vendor="nvidia", name="H100", count=8, memory_mib=81_559),)
    facts = HostFacts(cpus=64, memory_mib=1 << 20, gpus=cards, docker=Docker(version="27"), machine_id="m")
    called = names(fleet.ssh_config)
    targets = {
        name: Target(
            NodeState(
                index=index,
                name=name,
                address=f"10.0.0.{index + 1}",
                user="ops",
                host_key=f"ssh-ed25519 {name}",
            ),
            "scanned",
            f"SHA256:{name}",
        )
        for index, name in enumerate(called)
    }
    reports = tuple(HostReport(targets[name], facts, ()) for name in called)
    places = tuple(Address(name, f"192.168.1.{index + 1}", "eth1", 1500) for index, name in enumerate(called))
    return SshFacts(Survey(reports, ClusterNetwork("192.168.1.0/24", places), ()), targets)


ACTS: dict[str, Callable[[Any, Path], None]] = {
    "local": plan_locally,
    "ssh": plan_hosts,
    "aws": plan_on_aws,
    "gcp": plan_on_gcp,
}


@pytest.mark.parametrize("backend", BASES)
def test_each_property_of_a_fleet_is_refused_or_acted_on(tmp_path: Path, backend: str) -> None:
    idle = {}
    for leaf in leaves("fleet"):
        last = leaf.steps[-1]
        if (last.owner.__name__, last.name) in NOTHING_TO_ACT_ON:
            continue
        good, how = acted_on(tmp_path, leaf, BASES[backend], ACTS[backend])
        if not good:
            idle[str(leaf)] = how
    assert idle == {}, "\n".join(f"{leaf}: {how}" for leaf, how in idle.items())
