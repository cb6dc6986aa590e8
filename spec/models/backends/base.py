"""What the settings of all backends have: entries of `backends` in `orch.yml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from orch.spec.grammar.characters import check_word
from orch.spec.models.blocks import Cidrs
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import AutoFlag, Names, Tags, text


def _texts_by_key(value: object) -> object:
    return (
        {key: check_word(text(item)) for key, item in cast("dict[str, object]", value).items()}
        if isinstance(value, dict)
        else value
    )


ByRegion = Annotated[
    dict[str, str], Reads(_texts_by_key, json_schema.mapping(json_schema.TEXT, "{region: id}"))
]
Regions = Names


OF_CLAIMS = ("claim_name", "storage_class_name", "access_modes")
"""What only volumes of Kubernetes have."""


class BackendSettings(Section):
    """Settings of any backend: what the language says of one, and what `orch.yml` sets.

    `title`: its name as people write it. `provisioned`: whether nodes can be created on it by this version.
    `supports`: which of the properties in `rules/unsupported.py` it acts on; `instead`: what to do instead of
    others, where that differs from what is true of local nodes. `made_with_runs`: its nodes are containers
    of a run's image, which come and go with that run; `queues_pods`: they are pods that its queue starts, and
    no resources of the fleet. `volumes_lack`: properties that its volumes do not
    have; `volumes_shared`: whether several nodes use one at a time.
    """

    noun: ClassVar[str] = "a backend"
    title: ClassVar[str] = ""
    provisioned: ClassVar[bool] = False
    supports: ClassVar[frozenset[str]] = frozenset()
    instead: ClassVar[Mapping[str, str]] = {}
    made_with_runs: ClassVar[bool] = False
    queues_pods: ClassVar[bool] = False
    volumes_lack: ClassVar[tuple[str, ...]] = OF_CLAIMS
    volumes_shared: ClassVar[bool] = False

    type: Any

    @classmethod
    def form(cls) -> str:
        return "write `type: …` and its settings below it"


CLOUD_SUPPORTS = frozenset(
    {
        "regions",
        "region",
        "availability_zones",
        "zones",
        "zone",
        "instance_types",
        "spot_policy",
        "max_price",
        "reservation",
        "tags",
        "network",
        "os_image",
        "init",
        "mounts",
        "scratch",
        "scratch.fs",
        "topology",
        "gang",
        "budget",
        "nodes.spare",
        "volumes",
    }
)
"""What every cloud that is provisioned acts on."""


class CloudSettings(BackendSettings):
    """Settings of any cloud. `public_ips`, `ssh_cidrs` and `tags` are defaults of a fleet's `network`.

    `lacks`: which of its settings a cloud has nothing for, each with what is so instead."""

    lacks: ClassVar[Mapping[str, str]] = {}

    spellings: ClassVar[dict[str, str]] = {"region": "regions"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"region"})

    regions: Regions = Field(default=(), description="Regions that may be used; all if not given.")
    public_ips: AutoFlag = Field(default="auto", description="Public addresses of nodes.")
    ssh_cidrs: Cidrs = Field(default=(), description="Networks that may reach SSH; none if not given.")
    tags: Tags = Field(default={}, description="Tags of everything made here.")
