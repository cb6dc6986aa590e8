"""The types of Newcloud's resources, and what their properties say of a fleet. Pure."""

from __future__ import annotations

from orch.components.explain import ChangeRow, Explained
from orch.components.newcloud.plan import NewcloudPlan

PACKAGE = "orch-newcloud"
INSTANCE = f"{PACKAGE}:index:Instance"
GANG = f"{PACKAGE}:index:Gang"

EXPLAINED = Explained(
    traits={"region": "region", "instance_type": "type", "image": "machine image", "ssh_from": "SSH from"},
    new_nodes=frozenset({"instance_type", "image", "ssh_from"}),
    rows=(
        ChangeRow(INSTANCE, r"layout|user_data|waits", None),
        ChangeRow(INSTANCE, r"spec\.type", "instance_type"),
        ChangeRow(INSTANCE, r"spec\.region", "region"),
        ChangeRow(INSTANCE, r"spec\.image", "image"),
        ChangeRow(INSTANCE, r"spec\.ssh_from.*", "ssh_from"),
        ChangeRow(GANG, r"instances(\..*|\[.*\])?", None),
    ),
)


def traits(plan: NewcloudPlan) -> dict[str, str]:
    """Return what the nodes of a plan are."""
    return {
        "region": plan.region,
        "instance_type": plan.instance_type,
        "image": plan.image,
        "ssh_from": ", ".join(plan.ssh_from),
    }
