"""What a planned Lambda fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch.components.cloud.plan import NeocloudPlan

IMAGE_FAMILY = "lambda-stack"
"""The images of nodes where the file names none, of whatever Ubuntu: with NVIDIA's driver and Docker."""

NO_FIREWALL = ("us-south-1",)
"""Regions where the account's firewall rules do nothing. Source: Lambda Cloud API 1.10, firewallRulesSet."""


@dataclass(frozen=True, kw_only=True)
class LambdaPlan(NeocloudPlan):
    """A fleet of single instances on Lambda.

    `ssh_from`: the networks for which firewall rules are added to those of the account. `attached`: the path
    -> the id of each file system that is there already. `disk_gib`: what an instance of the type has. `tags`:
    of instances.
    """

    ssh_from: tuple[str, ...]
    image_words: str
    attached: Mapping[str, str]
    disk_gib: int
    tags: Mapping[str, str]
