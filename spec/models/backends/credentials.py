"""Credentials of backends, told apart by their `type`. Values that hold secrets should be references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from pydantic import Field

from orch.spec.grammar.values import Problem, shown
from orch.spec.models.fields.base import PropertyConflict, Section, describe
from orch.spec.models.fields.parsing import Reaches, Reads, read_as
from orch.spec.models.fields.types import Block, Line, LocalPath, Text, choice, text
from orch.spec.suggest import hint_for, listed

C = TypeVar("C", bound="Creds")

# Properties whose text is a secret by itself (ORCH132).
SECRETS = frozenset(
    {
        "secret_key",
        "api_key",
        "data",
        "private_key_content",
        "client_secret",
        "key_content",
        "pass_phrase",
        "password",
    }
)


class Creds(Section):
    """One way to log in."""

    noun: ClassVar[str] = "`creds`"


def by_type(*models: type[Creds]) -> Reads:
    """One of several kinds of credentials; where there is a single kind, its `type` may be left out."""
    kinds = {cast(str, model.model_fields["type"].default): model for model in models}

    def read(value: object) -> object:
        if isinstance(value, Creds):
            return value
        if not isinstance(value, dict):
            raise Problem(
                "ORCH112",
                f"`creds` cannot be {describe(value)}",
                hint=f"write `type: {next(iter(kinds))}` below it",
            )
        kind = cast("dict[str, object]", value).get("type")
        if kind is None:
            if len(kinds) > 1:
                raise Problem(
                    "ORCH113", "`creds` needs a `type`", hint=f"write {listed(f'type: {k}' for k in kinds)}"
                )
            return read_as(models[0], cast(object, value))
        word = text(kind)
        if word not in kinds:
            hint = hint_for(word, kinds) or f"write {listed(kinds)}"
            raise Problem(
                "ORCH111", f"{shown(word)} is not a kind of credentials here", hint=hint, at=("type",)
            )
        return read_as(kinds[word], cast(object, value))

    return Reads(read)


class DefaultCreds(Creds):
    """The chain of the cloud's own SDK."""

    type: Annotated[Literal["default"], choice("default")] = Field(
        default="default", description="`default`."
    )


class AwsDefaultCreds(Creds):
    """The chain of the AWS SDK."""

    type: Annotated[Literal["default"], choice("default")] = Field(
        default="default", description="`default`."
    )
    profile: Text | None = Field(default=None, description="Profile of the AWS configuration.")
    role_arn: Text | None = Field(default=None, description="Role to assume.")


class AccessKeyCreds(Creds):
    """A pair of keys."""

    type: Annotated[Literal["access_key"], choice("access_key")] = Field(
        default="access_key", description="`access_key`."
    )
    access_key: Line = Field(description="Its id.")
    secret_key: Line = Field(description="Its secret.")


class GcpServiceAccountCreds(Creds):
    """A key of a service account: a file, or its text."""

    type: Annotated[Literal["service_account"], choice("service_account")] = Field(
        default="service_account", description="`service_account`."
    )
    filename: LocalPath | None = Field(default=None, description="File of the key.")
    data: Block | None = Field(default=None, description="Text of the key.")

    def conflicts(self) -> Iterator[PropertyConflict]:
        yield from self.exactly_one("filename", "data")


class NebiusServiceAccountCreds(Creds):
    """A key of a service account: a file with all of it, or its parts."""

    type: Annotated[Literal["service_account"], choice("service_account")] = Field(
        default="service_account", description="`service_account`."
    )
    filename: LocalPath | None = Field(default=None, description="File with all of it.")
    service_account_id: Text | None = Field(default=None, description="The account's id.")
    public_key_id: Text | None = Field(default=None, description="The public key's id.")
    private_key_file: LocalPath | None = Field(default=None, description="File of the private key.")
    private_key_content: Block | None = Field(default=None, description="Text of the private key.")

    def conflicts(self) -> Iterator[PropertyConflict]:
        written = self.model_fields_set - {"type"}
        parts = {"service_account_id", "public_key_id"}
        if written == {"filename"}:
            return
        if written - {"private_key_file", "private_key_content"} != parts:
            yield PropertyConflict(
                "these credentials lack a part",
                "write `filename`, or `service_account_id`, `public_key_id` and a private key",
            )
        else:
            yield from self.exactly_one("private_key_file", "private_key_content")


class KeyCreds(Creds):
    """One key."""

    type: Annotated[Literal["api_key"], choice("api_key")] = Field(
        default="api_key", description="`api_key`."
    )
    api_key: Line = Field(description="The key.")


class AzureClientCreds(Creds):
    """A service principal."""

    type: Annotated[Literal["client"], choice("client")] = Field(default="client", description="`client`.")
    tenant_id: Text | None = Field(default=None, description="Tenant; the backend's if not given.")
    client_id: Text = Field(description="Client.")
    client_secret: Line = Field(description="Its secret.")


class OciDefaultCreds(Creds):
    """The configuration file of the OCI command line."""

    type: Annotated[Literal["default"], choice("default")] = Field(
        default="default", description="`default`."
    )
    file: LocalPath = Field(default="~/.oci/config", description="Its path.")
    profile: Text = Field(default="DEFAULT", description="Profile in it.")


class OciClientCreds(Creds):
    """A user's API key."""

    type: Annotated[Literal["client"], choice("client")] = Field(default="client", description="`client`.")
    user: Text = Field(description="User.")
    tenancy: Text = Field(description="Tenancy.")
    fingerprint: Text = Field(description="Fingerprint of the key.")
    region: Text = Field(description="Home region.")
    key_file: LocalPath | None = Field(default=None, description="File of the private key.")
    key_content: Block | None = Field(default=None, description="Text of the private key.")
    pass_phrase: Line | None = Field(default=None, description="Pass phrase of the key.")

    def conflicts(self) -> Iterator[PropertyConflict]:
        yield from self.exactly_one("key_file", "key_content")


class Kubeconfig(Section):
    """A kubeconfig: a file, or its text."""

    noun: ClassVar[str] = "`kubeconfig`"

    filename: LocalPath | None = Field(default=None, description="Its path.")
    data: Block | None = Field(default=None, description="Its text.")

    def conflicts(self) -> Iterator[PropertyConflict]:
        yield from self.exactly_one("filename", "data")

    @classmethod
    def form(cls) -> str:
        return "write `{filename: ~/.kube/config}`"


AwsCreds = Annotated[
    AwsDefaultCreds | AccessKeyCreds | None, by_type(AwsDefaultCreds, AccessKeyCreds), Reaches()
]
GcpCreds = Annotated[
    DefaultCreds | GcpServiceAccountCreds | None, by_type(DefaultCreds, GcpServiceAccountCreds), Reaches()
]
NebiusCreds = Annotated[NebiusServiceAccountCreds | None, by_type(NebiusServiceAccountCreds), Reaches()]
CrusoeCreds = Annotated[AccessKeyCreds | None, by_type(AccessKeyCreds), Reaches()]
ApiKeyCreds = Annotated[KeyCreds | None, by_type(KeyCreds), Reaches()]
AzureCreds = Annotated[
    DefaultCreds | AzureClientCreds | None, by_type(DefaultCreds, AzureClientCreds), Reaches()
]
OciCreds = Annotated[
    OciDefaultCreds | OciClientCreds | None, by_type(OciDefaultCreds, OciClientCreds), Reaches()
]
