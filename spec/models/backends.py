"""Backends of `orch.yml`: accounts, networks and images of each cloud, and this machine's containers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar.characters import check_word

from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.blocks import Cidrs
from orch.spec.models.credentials import (ApiKeyCreds, AwsCreds, AzureCreds, CrusoeCreds, GcpCreds, Kubeconfig, NebiusCreds, OciCreds)
from orch.spec.models.fields.types import (AutoFlag, Flag, Image, LocalPath, Names, Size, Tags, Text, User, choice, duration, rows, text, whole)
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reaches, Reads
from orch.spec.models.resources import GpuSpec
from orch.spec.models.ssh import Jumps, PortNumber


def _texts_by_key(value: object) -> object:
    return (
        {key: check_word(text(item)) for key, item in cast("dict[str, object]", value).items()}
        if isinstance(value, dict)
        else value
    )


ByRegion = Annotated[dict[str, str], Reads(_texts_by_key, json_schema.mapping(json_schema.TEXT, "{region: id}"))]
Regions = Names


class Backend(Section):
    """What all backends have."""

    noun: ClassVar[str] = "a backend"

    @classmethod
    def form(cls) -> str:
        return "write `type: …` and its settings below it"


class Cloud(Backend):
    """What all clouds have. `public_ips`, `ssh_cidrs` and `tags` are defaults of a fleet's `network`."""

    spellings: ClassVar[dict[str, str]] = {"region": "regions"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"region"})

    regions: Regions = Field(default=(), description="Regions that may be used; all if not given.")
    public_ips: AutoFlag = Field(default="auto", description="Public addresses of nodes.")
    ssh_cidrs: Cidrs = Field(default=(), description="Networks that may reach SSH; none if not given.")
    tags: Tags = Field(default={}, description="Tags of everything made here.")


class LocalSettings(Backend):
    """Containers on this machine as nodes."""

    noun: ClassVar[str] = "the backend `local`"

    type: Annotated[Literal["local"], choice("local")] = Field(default="local", description="`local`.")
    engine: Annotated[Literal["auto", "docker", "podman"], choice("auto", "docker", "podman")] = Field(
        default="auto", description="Container engine."
    )
    node_image: Image | None = Field(default=None, description="Image of the node containers.")
    subnet: Text | None = Field(default=None, description="Network of the nodes; a free one if not given.")
    cpus: Annotated[int | None, whole(1, 4096)] = Field(
        default=None, description="CPUs nodes may use in all."
    )
    memory_mib: Size | None = Field(
        default=None, validation_alias="memory", description="Memory nodes may use in all."
    )
    gpus: Text = Field(default="all", description="`all`, `none`, or ids separated by commas.")
    simulate_gpu: GpuSpec | None = Field(
        default=None, description="Pretend to have these, without devices: for tests."
    )


class SshSettings(Backend):
    """Defaults of every `ssh_config`."""

    noun: ClassVar[str] = "the backend `ssh`"

    type: Annotated[Literal["ssh", "remote"], choice("ssh", "remote")] = Field(
        default="ssh", description="`ssh`, or its other name `remote`."
    )
    user: User | None = Field(default=None, description="As in `ssh_config`.")
    port: PortNumber | None = Field(default=None, description="As in `ssh_config`.")
    identity_file: LocalPath | None = Field(default=None, description="As in `ssh_config`.")
    proxy_jump: Jumps | None = Field(default=None, description="As in `ssh_config`.")
    known_hosts: Annotated[Literal["accept-new", "strict"] | None, choice("accept-new", "strict")] = Field(
        default=None, description="As in `ssh_config`."
    )
    connect_timeout_s: Annotated[int | None, duration(10, never=False, low=1)] = Field(
        default=None, validation_alias="connect_timeout", description="As in `ssh_config`."
    )
    parallel: Annotated[int | None, whole(1, 1024)] = Field(default=None, description="As in `ssh_config`.")
    preflight: Annotated[Literal["strict", "warn", "off"] | None, choice("strict", "warn", "off")] = Field(
        default=None, description="As in `ssh_config`."
    )


class OsImage(Section):
    """A machine image, found by its name."""

    noun: ClassVar[str] = "an image of `os_images`"

    name: Text = Field(description="Its name.")
    owner: Text = Field(default="self", description="Account that owns it.")
    user: User = Field(default="ubuntu", description="User to log in as.")


class OsImages(Section):
    """Machine images by what the instance has."""

    noun: ClassVar[str] = "`os_images`"

    cpu: OsImage | None = Field(default=None, description="Without GPUs.")
    nvidia: OsImage | None = Field(default=None, description="With GPUs of NVIDIA.")


class AwsSettings(Cloud):
    """Amazon EC2."""

    noun: ClassVar[str] = "the backend `aws`"

    type: Annotated[Literal["aws"], choice("aws")] = Field(default="aws", description="`aws`.")
    creds: AwsCreds = Field(default=None, description="The SDK's own chain if not given.")
    vpc_name: Text | None = Field(default=None, description="Network by name, in every region.")
    vpc_ids: ByRegion = Field(default={}, description="Networks by region; not with `vpc_name`.")
    default_vpcs: Flag = Field(default=False, description="Later: use the default network of other regions.")
    subnet_ids: Names = Field(default=(), description="Subnets to use.")
    security_group_ids: Names = Field(default=(), description="Security groups to use.")
    iam_instance_profile: Text | None = Field(default=None, description="Profile of the instances.")
    os_images: OsImages = Field(default=OsImages(), description="Machine images.")
    kms_key: Text | None = Field(default=None, description="Key that disks are encrypted with.")
    endpoint_url: Annotated[Text | None, Reaches()] = Field(
        default=None, description="Another endpoint of the API."
    )
    experimental_instance_types: Flag = Field(default=False, description="Later: offer types not tested yet.")


class GcpSettings(Cloud):
    """Google Compute Engine."""

    noun: ClassVar[str] = "the backend `gcp`"

    type: Annotated[Literal["gcp"], choice("gcp")] = Field(default="gcp", description="`gcp`.")
    creds: GcpCreds = Field(default=None, description="The SDK's own chain if not given.")
    project_id: Text | None = Field(
        default=None, description="Project; that of the credentials if not given."
    )
    vpc_name: Text | None = Field(default=None, description="Network of the first interface.")
    extra_vpcs: Names = Field(default=(), description="Networks of further interfaces.")
    roce_vpcs: Annotated[tuple[str, ...], Reads(lambda value: _one("roce_vpcs", value), json_schema.TEXTS)] = Field(
        default=(), description="Network of the RDMA interfaces, one at most."
    )
    vpc_project_id: Text | None = Field(default=None, description="Project that shares its networks.")
    nat_check: Flag = Field(default=True, description="Check that private nodes reach the internet.")
    vm_service_account: Text | None = Field(default=None, description="Account of the instances.")
    preview_features: Names = Field(default=(), description="Later: features to switch on.")


def _one(what: str, value: object) -> object:
    from orch.spec.grammar.values import Problem

    from orch.spec.models.fields.types import names_of

    read = cast("tuple[str, ...]", names_of("networks").read(value))
    if len(read) > 1:
        raise Problem("ORCH117", f"`{what}` takes one network", hint="keep one of them", at=(1,))
    return read


class NebiusSettings(Cloud):
    """Nebius."""

    noun: ClassVar[str] = "the backend `nebius`"

    type: Annotated[Literal["nebius"], choice("nebius")] = Field(default="nebius", description="`nebius`.")
    creds: NebiusCreds = Field(default=None, description="Service account.")
    projects: Names = Field(default=(), description="Projects to use, one per region.")
    fabrics: Names = Field(default=(), description="InfiniBand fabrics to use.")


class CrusoeSettings(Cloud):
    """Crusoe."""

    noun: ClassVar[str] = "the backend `crusoe`"

    type: Annotated[Literal["crusoe"], choice("crusoe")] = Field(default="crusoe", description="`crusoe`.")
    creds: CrusoeCreds = Field(default=None, description="Access key.")
    project_id: Text = Field(description="Project.")


class RunpodSettings(Cloud):
    """RunPod."""

    noun: ClassVar[str] = "the backend `runpod`"

    type: Annotated[Literal["runpod"], choice("runpod")] = Field(default="runpod", description="`runpod`.")
    creds: ApiKeyCreds = Field(default=None, description="API key.")
    community_cloud: Flag = Field(default=False, description="Offer machines of the community too.")


class LambdaSettings(Cloud):
    """Lambda."""

    noun: ClassVar[str] = "the backend `lambda`"

    type: Annotated[Literal["lambda"], choice("lambda")] = Field(default="lambda", description="`lambda`.")
    creds: ApiKeyCreds = Field(default=None, description="API key.")


class KubernetesJump(Section):
    """A node that callers reach by SSH, on the way to pods."""

    noun: ClassVar[str] = "`proxy_jump`"

    hostname: Text | None = Field(default=None, description="Its name or address.")
    port: PortNumber | None = Field(default=None, description="Its port.")


class Context(Section):
    """A context of the kubeconfig; it counts as a region."""

    noun: ClassVar[str] = "a context"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text = Field(description="Its name.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to its pods.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data


class KubernetesSettings(Backend):
    """A Kubernetes cluster, or several."""

    noun: ClassVar[str] = "the backend `kubernetes`"
    spellings: ClassVar[dict[str, str]] = {"region": "regions"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"region"})

    type: Annotated[Literal["kubernetes"], choice("kubernetes")] = Field(
        default="kubernetes", description="`kubernetes`."
    )
    kubeconfig: Annotated[Kubeconfig | None, Reaches()] = Field(
        default=None, description="Your own if not given."
    )
    contexts: Annotated[tuple[Context, ...], rows("contexts")] = Field(
        default=(), description="Contexts to use; the current one if not given."
    )
    regions: Regions = Field(default=(), description="Names of contexts.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to pods.")
    namespace: Text = Field(default="default", description="Namespace.")
    rdma_resource: Text | None = Field(default=None, description="Name of the RDMA device resource.")
    gang: Annotated[Literal["none", "jobset", "kueue"], choice("none", "jobset", "kueue")] = Field(
        default="none", description="What starts all pods of a run together."
    )


class AzureSettings(Cloud):
    """Microsoft Azure."""

    noun: ClassVar[str] = "the backend `azure`"

    type: Annotated[Literal["azure"], choice("azure")] = Field(default="azure", description="`azure`.")
    creds: AzureCreds = Field(default=None, description="The SDK's own chain if not given.")
    tenant_id: Text = Field(description="Tenant.")
    subscription_id: Text = Field(description="Subscription.")
    resource_group: Text | None = Field(default=None, description="Resource group; one is made if not given.")
    vpc_ids: ByRegion = Field(default={}, description="Networks by region: `group/network`.")
    subnet_ids: ByRegion = Field(default={}, description="Subnets by region: `group/network/subnet`.")
    vm_managed_identity: Text | None = Field(default=None, description="Identity of the instances.")


class OciSettings(Cloud):
    """Oracle Cloud Infrastructure."""

    noun: ClassVar[str] = "the backend `oci`"

    type: Annotated[Literal["oci"], choice("oci")] = Field(default="oci", description="`oci`.")
    creds: OciCreds = Field(default=None, description="The SDK's own chain if not given.")
    compartment_id: Text | None = Field(default=None, description="Compartment; one is made if not given.")


BackendSettings = (
    LocalSettings
    | SshSettings
    | AwsSettings
    | GcpSettings
    | NebiusSettings
    | CrusoeSettings
    | RunpodSettings
    | LambdaSettings
    | KubernetesSettings
    | AzureSettings
    | OciSettings
)
BACKEND_MODELS: dict[str, type[BackendSettings]] = {
    "local": LocalSettings,
    "ssh": SshSettings,
    "remote": SshSettings,
    "aws": AwsSettings,
    "gcp": GcpSettings,
    "nebius": NebiusSettings,
    "crusoe": CrusoeSettings,
    "runpod": RunpodSettings,
    "lambda": LambdaSettings,
    "kubernetes": KubernetesSettings,
    "azure": AzureSettings,
    "oci": OciSettings,
}
