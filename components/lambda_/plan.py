"""What a planned Lambda fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.components.cloud.plan import CloudPlan
from orch.spec.models.ssh import Jump

IMAGE_FAMILY = "lambda-stack"
"""The images of nodes where the file names none, of whatever Ubuntu: with NVIDIA's driver and Docker."""

NO_FIREWALL = ("us-south-1",)
"""Regions where the account's firewall rules do nothing. Source: Lambda Cloud API 1.10, firewallRulesSet."""


@dataclass(frozen=True, kw_only=True)
class LambdaPlan(CloudPlan):
    """A fleet of single instances on Lambda.

    `access`: how SSH gets in; `ssh_from`: the networks for which firewall rules are added to those of the
    account; `jumps`: given hops. `image`: the id of the machine image. `attached`: the path -> the id of each
    file system that is there already. `disk_gib`: what an instance of the type has. `tags`: of instances.
    """

    access: Literal["direct", "given"]
    ssh_from: tuple[str, ...]
    jumps: tuple[Jump, ...]
    image: str
    image_words: str
    attached: Mapping[str, str]
    disk_gib: int
    tags: Mapping[str, str]
    whole: bool
    others: tuple[LambdaPlan, ...] = ()

    @property
    def node_groups(self) -> tuple[LambdaPlan, ...]:
        return (self, *self.others)
