"""Settings of the backend `kubernetes`: A Kubernetes cluster, or several."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import BackendSettings, Regions
from orch.spec.models.backends.credentials import Kubeconfig
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reaches
from orch.spec.models.fields.types import Text, choice, rows
from orch.spec.models.ssh import PortNumber


class KubernetesJump(Section):
    """A node that callers reach by SSH, on the way to pods."""

    noun: ClassVar[str] = "`proxy_jump`"

    hostname: Text | None = Field(default=None, description="Its name or address.")
    port: PortNumber | None = Field(default=None, description="Its port.")


class KubeContext(Section):
    """A context of the kubeconfig; it counts as a region."""

    noun: ClassVar[str] = "a context"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text = Field(description="Its name.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to its pods.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data


class KubernetesSettings(BackendSettings):
    """A Kubernetes cluster, or several."""

    noun: ClassVar[str] = "the backend `kubernetes`"
    title: ClassVar[str] = "Kubernetes"
    spellings: ClassVar[dict[str, str]] = {"region": "regions"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"region"})

    type: Annotated[Literal["kubernetes"], choice("kubernetes")] = Field(
        default="kubernetes", description="`kubernetes`."
    )
    kubeconfig: Annotated[Kubeconfig | None, Reaches()] = Field(
        default=None, description="Your own if not given."
    )
    contexts: Annotated[tuple[KubeContext, ...], rows("contexts")] = Field(
        default=(), description="Contexts to use; the current one if not given."
    )
    regions: Regions = Field(default=(), description="Names of contexts.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to pods.")
    namespace: Text = Field(default="default", description="Namespace.")
    rdma_resource: Text | None = Field(default=None, description="Name of the RDMA device resource.")
    gang: Annotated[Literal["none", "jobset", "kueue"], choice("none", "jobset", "kueue")] = Field(
        default="none", description="What starts all pods of a run together."
    )
