"""Settings of the backend `aws`: Amazon EC2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.models.backends.base import CLOUD_SUPPORTS, ByRegion, CloudSettings
from orch.spec.models.backends.credentials import AwsCreds
from orch.spec.models.fields.base import PropertyConflict, Section
from orch.spec.models.fields.parsing import Reaches
from orch.spec.models.fields.types import Flag, Names, Text, User, choice


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


class AwsSettings(CloudSettings):
    """Amazon EC2."""

    noun: ClassVar[str] = "the backend `aws`"
    title: ClassVar[str] = "AWS"
    provisioned: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = CLOUD_SUPPORTS | {"idle_duration", "ttl"}

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

    def conflicts(self) -> Iterator[PropertyConflict]:
        yield from super().conflicts()
        if self.vpc_name is not None and self.vpc_ids:
            yield PropertyConflict(
                "a network has either `vpc_name` or `vpc_ids`",
                "remove one of them",
                at=("vpc_ids",),
                key=True,
            )
