"""Changes with a planted danger each, as reviews: from plans that no engine made, and from streams of the
real one.

`PYTHONPATH=tests python -m kit.forges.dangers` writes the comments of `review/comments/` anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit import TESTS
from kit.engine.recorded_plans import Preview

from orch.components.aws import explain as aws
from orch.components.deployment import Deployment, PricedNodes
from orch.review.assess import failed_review, fleet_review, volume_review
from orch.review.markdown import markdown
from orch.review.model import FleetSubject, PolicyResult, Review, StackReview, worst_first
from orch.spec.diagnostics import Diagnostic, Severity, Span
from orch.spec.loader.load import InvalidConfiguration
from orch.spec.models import Fleet
from orch.stacks.errors import StackError
from orch.stacks.events.changes import Change, Op, PropertyChange, PropertyDrift
from orch.stacks.events.masking import HIDDEN
from orch.stacks.plans.headline import FleetRecord, Headline, headline
from orch.stacks.plans.plan import Plan
from orch.stacks.provisioning.busy_nodes import Occupant
from orch.stacks.volumes.operations import VolumeOutcome

COMMENTS = TESTS / "review" / "comments"
PRICES = "list of aws, late 2025 or newer"
INSTANCE = "aws:ec2/instance:Instance"
P5 = 55.04


def change(op: Op, type_: str, name: str, *diff: PropertyChange, **more: Any) -> Change:
    return Change(op, type_, name, f"urn:pulumi:p5::tests::{type_}::{name}", tuple(diff), **more)


def node(op: Op, index: int, *diff: PropertyChange, name: str = "p5") -> Change:
    return change(op, INSTANCE, f"{name}-{index}", *diff)


def names(count: int, name: str = "p5") -> tuple[str, ...]:
    return tuple(f"{name}-{index}" for index in range(count))


def recorded(count: int, name: str = "p5", gpus: int = 8) -> list[dict[str, Any]]:
    return [
        {
            "name": each,
            "instance_type": "p5.48xlarge",
            "zone": "use1-az1",
            "price_hourly": P5,
            "gpus": {"count": gpus, "name": "H100"},
        }
        for each in names(count, name)
    ]


def compiled(count: int, name: str = "p5", price: float | None = P5, **more: Any) -> Deployment:
    listed = names(count, name)
    market = more.pop("market", "on-demand")
    priced = PricedNodes("aws", listed, "p5.48xlarge", "use1-az1", market, price, 8, "H100")
    return Deployment(
        reasons=(),
        pins={},
        hourly=round((price or 0.0) * count, 6),
        register=_never,
        explained=aws.EXPLAINED,
        nodes=listed,
        priced=(priced,),
        **more,
    )


def fleet(name: str = "p5", nodes: Any = 4, **more: Any) -> Fleet:
    return Fleet.model_validate(
        {"type": "fleet", "name": name, "backends": ["aws"], "nodes": nodes, "placement": "cluster", **more}
    )


def plan(changes: Sequence[Change], after: Deployment, before: int, name: str = "p5", **more: Any) -> Plan:
    traits = more.pop("traits", {})
    old = FleetRecord(traits, {each: each for each in names(before, name)})
    lost = {each.name for each in changes if each.op in ("delete", "replace")} & set(names(before, name))
    was = round(P5 * before, 6)
    return Plan(
        name,
        name,
        tuple(changes),
        (),
        hourly=after.hourly,
        delta=round(after.hourly - was, 6),
        headline=headline(changes, old, after),
        lost_nodes=frozenset(lost),
        **more,
    )


def subject(made: Plan, model: Fleet, after: Deployment, before: int, **more: Any) -> FleetSubject:
    name = made.fleet
    return FleetSubject(
        made, model, f"infra/{name}.yml:1", after, recorded(before, name), prices=PRICES, **more
    )


def review(*stacks: StackReview) -> Review:
    return Review("tests", "infra", worst_first(stacks), "orch up infra")


def at(code: str, summary: str, line: int, severity: Severity = Severity.WARNING, **more: Any) -> Diagnostic:
    return Diagnostic(code, Span("infra/p5.yml", line, 3, line, 20), summary, severity, **more)


def _never() -> Any:
    raise AssertionError("nothing is registered in a test of reviews")


# The dangers


def data_volume_deleted() -> Review:
    """A volume is replaced, and a file system of a fleet is no longer asked for; beside that, ten harmless
    fleets."""
    disk = change(
        "replace",
        "aws:ebs/volume:Volume",
        "data",
        PropertyChange("availabilityZone", "us-east-1a", "us-east-1b", replaces=True),
    )
    volume = volume_review(
        VolumeOutcome("data", (disk,), monthly=80.0, was_monthly=40.0, loses_data=True), "infra/data.yml:1"
    )
    file_system = change("delete", "aws:fsx/lustreFileSystem:LustreFileSystem", "p5-fs-0")
    after = compiled(4)
    lost = fleet_review(subject(plan([file_system], after, 4), fleet(), after, 4))
    tags = PropertyChange("tags.owner", "ada", "eve")
    others = [
        fleet_review(
            subject(
                plan([node("update", 0, tags, name=f"lab{i}")], after, 4, f"lab{i}"),
                fleet(f"lab{i}"),
                after,
                4,
            )
        )
        for i in range(10)
        for after in [compiled(4, f"lab{i}")]
    ]
    return review(*others, lost, volume)


def node_under_512_gpus() -> Review:
    """One of 64 nodes is replaced, on which a rank of a run on all of them is."""
    after = replace(compiled(64), traits={"image": "ami-2"})
    template = PropertyChange("launchTemplate.version", "3", "(known after up)", replaces=True)
    image = PropertyChange("ami", "ami-1", "ami-2", replaces=True)
    changes = [node("replace", 17, image, template), *(node("same", i) for i in range(64) if i != 17)]
    runs = (Occupant("p5-17", "llama-k3f9", "ada@desk", own=True, gpus=512),)
    made = plan(changes, after, 64, traits={"image": "ami-1"})
    return review(fleet_review(subject(made, fleet(nodes=64), after, 64, occupants=runs)))


def ssh_opened() -> Review:
    """A firewall lets the whole world in, in a change that reads as one of tags."""
    rule = PropertyChange("ingress[0].cidrBlocks", ["203.0.113.0/24"], ["0.0.0.0/0"])
    tags = [PropertyChange("tags.owner", "ada", "eve")]
    changes = [
        change("update", "aws:ec2/securityGroup:SecurityGroup", "p5-bastion", rule),
        *(node("update", i, *tags) for i in range(4)),
    ]
    after = compiled(4)
    found = at(
        "ORCH224",
        "0.0.0.0/0 lets the whole world knock at SSH",
        14,
        hint="name your own networks, or remove it",
    )
    return review(fleet_review(subject(plan(changes, after, 4), fleet(), after, 4, diagnostics=[found])))


def budget_at_max_nodes() -> Review:
    """What there is now is cheap; as many nodes as the file allows are over the budget."""
    after = compiled(2)
    model = fleet(nodes="2..16", budget={"hourly": 400})
    return review(fleet_review(subject(plan([node("create", 1)], after, 1), model, after, 1)))


def budget_refused() -> Review:
    """The same as the planner refuses it."""
    error = InvalidConfiguration(
        [
            at(
                "ORCH281",
                "16 nodes at $55.04 an hour make $880.64, over the budget of $400",
                9,
                Severity.ERROR,
                hint="raise `budget.hourly`, or ask for fewer or cheaper nodes",
                excerpt="budget: {hourly: 400}  # API_TOKEN=hunter2hunter2",
            )
        ]
    )
    error.exit_code = 4  # type: ignore[misc]
    return review(failed_review("fleet", "p5", "infra/p5.yml:1", error))


def file_system_refused() -> Review:
    """A fleet's file no longer has its file system: the plan is refused, and says what would be lost."""
    error = StackError(
        "the Lustre file system at /data (fs-0a1b) would be deleted, and all data on it lost",
        hint="write in `mounts` what the file system has now; `orch down p5` deletes the fleet with its data",
        code="ORCH275",
    )
    return review(failed_review("fleet", "p5", "infra/p5.yml:1", error))


def price_unknown() -> Review:
    """Of one fleet the price is not known, of the other it is, of the third a reservation pays."""
    stacks: list[StackReview] = []
    for name, price, market in (("lab", None, "on-demand"), ("p5", P5, "spot"), ("res", P5, "reserved")):
        after = compiled(2, name, price, market=market)
        made = plan([node("create", i, name=name) for i in range(2)], after, 0, name)
        made = replace(made, unpriced=("NAT gateway and its traffic",))
        stacks.append(fleet_review(subject(made, fleet(name, 2), after, 0)))
    return review(*stacks)


def drift_mixed_in() -> Review:
    """A stream of the real engine: a node was terminated by hand, and the file has another disk."""
    found = Preview.of("aws-drift-and-disk")
    made = found.plan()
    made = replace(made, lost_nodes=frozenset({"p5-0", "p5-1", "p5-3"}), hourly=P5 * 4)
    return review(fleet_review(subject(made, fleet(), compiled(4), 4)))


HOSTILE = (
    "@org/admins `x` | <img src=x onerror=alert(1)> <!-- orch:plan v1 --> #123 GH-7 https://evil.example\n"
    "## ok \u202eevil"
)


def hostile_names() -> Review:
    """Tags, runs, policies and files of people who would ping a team, or end a comment or a table."""
    leaf = PropertyChange('tags["@here|<b>"]', "```\n# approved\n````", HOSTILE)
    runs = (Occupant("p5-0", "@everyone", HOSTILE, own=False),)
    changes = [node("replace", 0, leaf, PropertyChange("ami", HOSTILE, "ami-2", replaces=True))]
    after = compiled(1)
    policies = (PolicyResult("tags-required", "mandatory", HOSTILE, file="infra/@x|.yml", line=3),)
    model = fleet(nodes=1)
    made = plan(changes, after, 1)
    stack = fleet_review(subject(made, model, after, 1, occupants=runs, policies=policies))
    return Review(HOSTILE, f"{HOSTILE} -->", (replace(stack, where=HOSTILE),), f"orch up '{HOSTILE}'")


def many_nodes() -> Review:
    """400 nodes change, each in its own way; one of them is replaced."""
    after = compiled(400)
    changes = [
        node(
            "update",
            i,
            *(
                PropertyChange(f"part{part}", "x" * 40, f"{'y' * (i % 37)}{i * i + 1000}")
                for part in range(8)
            ),
        )
        for i in range(400)
        if i != 217
    ]
    changes.append(node("replace", 217, PropertyChange("ami", "ami-1", "ami-2", replaces=True)))
    made = plan(sorted(changes, key=lambda each: each.urn), after, 400)
    return review(fleet_review(subject(made, fleet(nodes=400), after, 400)))


def secret_in_env() -> Review:
    """Secrets where people put them: hidden by the engine, by their name, and within text."""
    secret = "hunter2hunter2"
    leaves = (
        PropertyChange("env.WANDB_API_KEY", secret, f"{secret}-2"),
        PropertyChange("env", {"HF_TOKEN": secret}, {"HF_TOKEN": f"{secret}-3"}),
        PropertyChange("command", ["train"], ["train", f"DB_PASSWORD={secret}"]),
        PropertyChange("environment", [], [{"name": "AWS_SECRET_ACCESS_KEY", "value": secret}]),
        PropertyChange("userData", HIDDEN, HIDDEN),
    )
    drift = PropertyDrift(node("update", 0).urn, "p5-0", "env.SLACK_TOKEN", secret, f"{secret}-4")
    after = compiled(1)
    made = replace(plan([node("update", 0, *leaves)], after, 1), drift=(drift,))
    made = replace(
        made,
        reasons=(f"jobs get HF_TOKEN={secret}",),
        headline=Headline((f"tags API_TOKEN={secret} -> none",), explained=aws.EXPLAINED),
    )
    found = at("ORCH196", f"`HF_TOKEN={secret}` has no effect", 4, excerpt=f"env: {{HF_TOKEN: {secret}}}")
    return review(fleet_review(subject(made, fleet(nodes=1), after, 1, diagnostics=[found])))


CASES: Mapping[str, tuple[Callable[[], Review], str]] = {
    "data-volume-deleted": (data_volume_deleted, "all data on it is lost"),
    "node-under-512-gpus": (node_under_512_gpus, "of 512 GPUs stops: p5-17 goes under it"),
    "ssh-opened": (ssh_opened, "lets the whole world"),
    "budget-at-max-nodes": (budget_at_max_nodes, "is passed: only with 16 nodes"),
    "budget-refused": (budget_refused, "over the budget of &#36;400"),
    "file-system-refused": (file_system_refused, "would be deleted, and all data on it lost"),
    "price-unknown": (price_unknown, "no price is known of lab-\\[0-1\\]"),
    "drift-mixed-in": (drift_mixed_in, "changed outside orch before this change"),
    "hostile-names": (hostile_names, "goes under it"),
    "many-nodes": (many_nodes, "p5-217: 1 running node is destroyed and made anew"),
    "secret-in-env": (secret_in_env, "p5-0: changed outside orch before this change"),
}
"""Each with what its comment must say of it."""


def compare_comment(name: str, text: str, danger: str) -> None:
    """Hold a comment against its file in ci/comments, and look for the danger near its top."""
    file = TESTS / "ci" / "comments" / f"{name}.md"
    if os.environ.get("ORCHCTL_TEST_WRITE"):
        file.write_text(text)
    assert danger in "\n".join(text.splitlines()[:25])
    assert text == file.read_text(), "ORCHCTL_TEST_WRITE=1 writes it anew"


if __name__ == "__main__":
    for case, (make, _) in CASES.items():
        (COMMENTS / f"{case}.md").write_text(markdown(make()))
    sys.exit(0)
