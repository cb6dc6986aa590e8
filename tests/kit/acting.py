"""What plans and runs each kind of document, without a cloud and without nodes: `act(document, folder)`.

An act goes on step by step, so that who has seen enough of it ends it there. It adds to `told` the shell text
that it would send elsewhere, but for what templates render.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pulumi
import pulumi.runtime
from google.auth.credentials import AnonymousCredentials

from kit.clouds.plan_cases import case_type, clouds
from kit.clouds.planning import request_of
from kit.engine.registering import registered
from orch.cli.driver.new_nodes import NewNodes
from orch.cli.runs import submission
from orch.components.aws.fleet_state import ssm_command
from orch.components.cloud.neocloud import NeocloudBackend
from orch.components.crusoe.account import login as crusoe_login
from orch.components.gcp.fleet_state import iap_command
from orch.components.init_steps import scripts
from orch.components.local.facts import LocalFacts
from orch.components.local.plan import plan as plan_local
from orch.components.node_count import with_node_count
from orch.components.registry.backends import backend
from orch.components.registry.planning import check_total_budget, compile_fleet, watched
from orch.components.request import PlanRequest, PriorState, Spent
from orch.components.ssh.facts import SshFacts
from orch.components.ssh.facts import ask as ask_hosts
from orch.components.ssh.plan import plan as plan_ssh
from orch.policies.rule import Resource
from orch.policies.settings import Settings, Subject, finding_of, violations
from orch.runner.errors import HostUnreachable
from orch.runner.hosts.checks.types import HostReport
from orch.runner.hosts.host_facts import Docker, Gpu, HostFacts
from orch.runner.hosts.network import ClusterAddress as Address
from orch.runner.hosts.network import ClusterNetwork
from orch.runner.hosts.survey import Survey
from orch.runner.launch.compile import compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.container import go_command, log_command, observe_command, release_command, stop_command
from orch.runner.node.container_start import start_command
from orch.runner.node.stage import stage_files
from orch.runner.node_api.connector import Connector
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.naming import names
from orch.runner.ssh.targets import SshTarget
from orch.spec.errors import OrchError
from orch.spec.loader.load import Document
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.models.backends.local import LocalSettings
from orch.spec.models.project import ProjectSettings
from orch.spec.state import FleetState, Gpus, NodeState
from orch.stacks.project.project import find
from orch.stacks.secrets.values import tunnels
from orch.stacks.stack.state import StackState

Steps = Generator[None, None, None]
Act = Callable[[Document, Path, list[str]], Steps]


def fleets(plan: Callable[[Fleet, Path], Steps]) -> Act:
    """The act of a backend's plan."""

    def act(document: Document, folder: Path, told: list[str]) -> Steps:
        assert isinstance(document.model, Fleet)
        with_node_count(request_of(document.model, folder=folder))
        watched(document.model)
        yield from plan(document.model, folder)

    return act


def act_on(backend: str) -> Act:
    """Return the act of a backend's plan."""
    alone = {"local": plan_locally, "ssh": plan_hosts}
    return fleets(alone.get(backend) or partial(plan_on_cloud, backend))


def plan_on_cloud(name: str, fleet: Fleet, folder: Path, given: BackendSettings | None = None) -> Steps:
    cloud, kind = backend(name), case_type(name)
    settings = given or cloud.settings.model_validate(kind.usual)
    case = kind.given(fleet, settings)
    (place, *_) = case.candidates()
    yield
    case.lookups(place)
    scripts(fleet, folder)
    yield
    request = request_of(fleet, settings, folder=folder, session=SimpleNamespace(key={}))
    deployment = cloud.deploy(request, place, case.plan(place))
    check_total_budget(replace(request, spent=Spent(0.0)), deployment)
    yield
    if given is None and fleet.__dict__["network"] is None:
        return
    if name in REGISTERED:
        REGISTERED[name](deployment.plan, settings)
    elif isinstance(cloud, NeocloudBackend):
        registered(Given(), lambda: deployment.register()[0])


class Given(pulumi.runtime.Mocks):
    """Resources that get what a cloud would give them."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        more: dict[str, Any] = {"arn": f"arn:{args.name}", "latestVersion": 1, "instanceId": args.name}
        if args.typ == "orch:index:Keys":
            more |= {"client_private_key": "private", "client_public_key": "ssh-ed25519 AAAA me"}
            more |= {"host_seed": "ab" * 32}
        if args.typ.endswith(":index:Gang"):
            machine = {"address": "10.0.0.9", "public": "203.0.113.7", "topology": []}
            more |= {"machines": {name: {"id": name, **machine} for name in args.inputs["instances"]}}
        if "nstance" in args.typ:
            nic = {"networkIp": "10.0.0.9", "accessConfigs": [{"natIp": "203.0.113.7"}]}
            more |= {"privateIp": "10.0.0.9", "publicIp": "203.0.113.7", "networkInterfaces": [nic]}
            more |= {"primaryNetworkInterfaceId": f"eni-{args.name}", "selfLinkUnique": args.name}
        return f"{args.name}-id", {**args.inputs, **more}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"{args.token} is asked inside the program")


def register_on_aws(plan: Any, settings: AwsSettings) -> None:
    from orch.components.aws.resources import AwsFleet

    registered(Given(), lambda: AwsFleet(plan, settings, lambda ids: {}).state)


def register_on_gcp(plan: Any, settings: GcpSettings) -> None:
    from orch.components.gcp.resources import GcpFleet

    registered(Given(), lambda: GcpFleet(plan, settings, lambda names: {}, lambda group, count: ()).state)


REGISTERED: dict[str, Callable[[Any, Any], None]] = {"aws": register_on_aws, "gcp": register_on_gcp}


def plan_locally(fleet: Fleet, folder: Path) -> Steps:
    yield
    machine = LocalFacts(cpus=64, memory_mib=1 << 20, node_image="orch/node")
    plan_local(fleet, machine, PriorState(), "abc", scripts(fleet, folder))


def plan_hosts(fleet: Fleet, folder: Path) -> Steps:
    """Asked where nothing listens, and planned as if all were fit."""
    ask_hosts(fleet, folder)
    yield
    request = PlanRequest(fleet, (), PriorState(), "abc", root=folder, folder=folder)
    plan_ssh(request, fit_hosts(fleet), scripts(fleet, folder))


def fit_hosts(fleet: Fleet) -> SshFacts:
    """What hosts without a fault would have said."""
    assert fleet.ssh_config is not None
    cards = (Gpu(vendor="nvidia", name="H100", count=8, memory_mib=81_559),)
    facts = HostFacts(cpus=64, memory_mib=1 << 20, gpus=cards, docker=Docker(version="27"), machine_id="m")
    called = names(fleet.ssh_config)
    targets = {
        name: SshTarget(
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


# Tasks: the command line's own way, up to what a node is asked to start


class Unreachable:
    """A way to nodes that leads to none: where they do not answer, a run is planned all the same."""

    def run(self, node: NodeState, command: object, **more: object) -> Any:
        raise HostUnreachable(f"{node.name} does not answer")

    def close(self) -> None: ...

    def hang_up(self) -> None: ...


def fleets_of(backend: str, names: tuple[str, ...]) -> dict[str, FleetState]:
    """Fleets of two nodes each with eight H100."""
    gpus = Gpus(count=8, vendor="nvidia", name="H100", memory_mib=81_559)
    kinds = {"aws": ("p5.48xlarge", "efa"), "gcp": ("a3-megagpu-8g", "tcpxo")}
    kind, interconnect = kinds.get(backend, (None, "none"))
    nodes = tuple(
        NodeState(
            index=index,
            name=f"n{index}",
            address=f"127.0.0.{index + 2}",
            internal_ip=f"10.0.0.{index + 2}",
            user="root",
            host_key="k",
            cpus=64,
            memory_mib=1 << 20,
            gpus=gpus,
            instance_type=kind,
        )
        for index in range(2)
    )
    more: dict[str, Any] = {"placement": "cluster", "interconnect": interconnect}
    return {name: FleetState(name=name, stack=name, backend=backend, nodes=nodes, **more) for name in names}


@cache
def empty_ledger() -> bytes:
    """The file of a ledger that was just made, which takes longer than a plan."""
    with TemporaryDirectory() as folder:
        open_ledger(f"sqlite:///{folder}/ledger.db").close()
        return Path(folder, "ledger.db").read_bytes()


def compiled(place: RunnerContext, row: RunRow) -> tuple[RunPlan, tuple[dict[str, str], ...]]:
    """The plan of a run and the environments of its ranks; of a member of an array as its first attempt has
    them, on the nodes that it would have."""
    plan, folder = plan_of(row), place.context(row).folder
    if row.array is None:
        return plan, folder.environments()
    record = LaunchRecord.kept(folder)
    seats = place_task(record.task, record.fleet)
    again = compile_run(record.request(row, fleet=record.fleet, seats=seats, volumes=record.volumes))
    return again.plan, again.environments


def run_on(backend: str, **given: Any) -> Act:
    """`given` is what a command line may hold: `name`, `arguments`, `variables`."""

    def act(document: Document, folder: Path, told: list[str]) -> Steps:
        here = fleets_of(backend, document.model.__dict__["fleets"] or ("lab",))
        (folder / "ledger.db").write_bytes(empty_ledger())
        ledger = open_ledger(f"sqlite:///{folder / 'ledger.db'}")
        place = RunnerContext(folder / ".orch", ledger, cast(Connector, Unreachable()))
        try:
            with (
                patch("orch.cli.runs.submission._candidates", lambda *asked: here),
                patch(
                    "orch.stacks.record.fleets.known_fleets", lambda at: {n: StackState(at, n) for n in here}
                ),
                patch("orch.images.resolve", lambda image: image),
            ):
                room = submission.fleets_with_room(
                    find(folder), place, document, None, NewNodes(True, False, "")
                )
                # As if the nodes that it gets were made for it.
                made = frozenset(node.name for fleet in here.values() for node in fleet.nodes)
                row = submission.submit_task(
                    find(folder),
                    place,
                    document,
                    submission.RunRequest(**given),
                    replace(room, made=made),
                )
            yield
            plan, environments = compiled(place, row)
            for rank in range(len(plan.ranks)):
                staged = stage_files(plan, rank, environments[rank], None)
                told += [staged["env"], *(text for name, text in staged.items() if name.endswith(".sh"))]
                nothing = (b"",)
                made = [start_command(plan, rank, nothing), go_command(plan, rank, 29_500)]
                made += [
                    ask(plan, rank) for ask in (observe_command, stop_command, release_command, log_command)
                ]
                told += [each.text for each in made]
        finally:
            ledger.close()
            (folder / "ledger.db").unlink()

    return act


# orch.yml: a fleet of each backend of it, and what logs in there

MORE_FLEETS = {"aws": {"instance_types": ["c7i.8xlarge"]}, "gcp": {"instance_types": ["n2-standard-8"]}}
# The commands that lead to nodes over a cloud's tunnel.
TUNNELS: dict[str, Callable[[Any], str]] = {
    "aws": lambda settings: ssm_command("us-east-1", settings, "i-0"),
    "gcp": lambda settings: iap_command("acme", "us-west1-b", settings, "node"),
}


@contextmanager
def nobody_answers() -> Iterator[None]:
    """The SDKs ask no machine but this one, where nothing listens."""
    nowhere = "http://127.0.0.1:1"
    given = {"AWS_ENDPOINT_URL": nowhere, "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    given |= {crusoe_login.KEY: "nobody", crusoe_login.SECRET: "nothing"}
    anonymous = patch("google.auth.default", lambda: (AnonymousCredentials(), "acme"))
    # Its errors are in a module that does not go with Pulumi's SDK: tests/kit/apart.py.
    as_raised = patch(
        "orch.components.gcp.account.gather_facts.translate_errors", lambda doing: nullcontext()
    )
    with patch.dict(os.environ, given), anonymous, as_raised:
        yield


def use_project(document: Document, folder: Path, told: list[str]) -> Steps:
    judge(Settings(cast(ProjectSettings, document.model).policies))
    yield
    project = find(folder)
    tunnels(project)
    yield
    # Ranges are told apart as objects, and the project has read its own.
    of_document = cast(ProjectSettings, document.model).configured
    for settings in project.backends:
        if isinstance(settings, LocalSettings):
            fleet = fleet_of("local", {})
            with patch(
                "orch.components.local.backend.ask", lambda image: LocalFacts(64, 1 << 20, image or "")
            ):
                compile_fleet(
                    PlanRequest(fleet, of_document, PriorState(), "abc", root=folder, folder=folder)
                )
        elif settings.type in clouds():
            yield from use_cloud(settings, folder, told)


def use_cloud(settings: Any, folder: Path, told: list[str]) -> Steps:
    name = settings.type
    case = case_type(name)
    if name in TUNNELS:
        told.append(TUNNELS[name](settings).replace("%%", "%"))
    with nobody_answers():
        case.log_in(settings, folder)
        yield
        places = [fleet_of(name, wish) for wish in (MORE_FLEETS.get(name), case.wish) if wish]
        yield from all_of(partial(plan_on_cloud, name, fleet, folder, settings) for fleet in places)


def judge(settings: Settings) -> None:
    """Judge a resource by policies, and say what they say."""
    public = {"associatePublicIpAddress": True, "launchTemplate": {}}
    found = settings.of_resource(Resource("aws:ec2/instance:Instance", "lab-0", "urn", public))
    for each in violations(found, Subject("lab", "lab.yml", date(2027, 1, 1))):
        finding_of(each)


def all_of(acts: Iterable[Callable[[], Steps]]) -> Steps:
    """The steps of each act, whatever became of those before. Raises the first error."""
    errors = list[OrchError]()
    for act in acts:
        try:
            yield from act()
        except OrchError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def fleet_of(backend: str, more: dict[str, Any]) -> Fleet:
    given = {"type": "fleet", "name": "lab", "backends": [backend], "nodes": "2", **more}
    return Fleet.model_validate(given)
