"""What a resource type is to the provider, and what all of them need."""

from __future__ import annotations

import base64
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.actions import ACCOUNT
from orch.rehearsal.aws.api.errors import THROTTLED, AwsError
from orch.rehearsal.store import Doc

Props = dict[str, Any]

TRIES = 25
"""How often the real provider sends a throttled call (its `max_retries`)."""

WAIT_S = 15.0
"""How long a removal waits for what depends on it; the real provider waits for minutes."""


class ApiFailure(Exception):
    """An API call was refused. `error` is what AWS said, `action` the call."""

    def __init__(self, service: str, action: str, error: AwsError) -> None:
        super().__init__(str(error))
        self.service, self.action, self.error = service, action, error

    @property
    def code(self) -> str:
        return self.error.code

    def text(self, activity: str) -> str:
        """As the real provider words it: the code stands behind `api error`."""
        request = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.action} {self.error}")
        return (
            f"{activity}: operation error {self.service.upper()}: {self.action}, https response error "
            f"StatusCode: "
            f"{self.error.status}, RequestID: {request}, api error {self.error.code}: {self.error.message}"
        )


class Api:
    """Calls of one region, throttled ones repeated."""

    def __init__(self, cloud: Cloud, region: str) -> None:
        self.cloud = cloud
        self.region = region

    @property
    def owner(self) -> str:
        """The id of the account."""
        return self.cloud.identity(ACCOUNT)

    def __call__(self, action: str, /, *, service: str = "ec2", **params: Any) -> Doc:
        parameters = {key: value for key, value in params.items() if value is not None}
        pause = 0.05
        for number in range(TRIES):
            try:
                return self.cloud.call(
                    action, parameters, service=service, region=self.region, caller="pulumi"
                )
            except AwsError as error:
                if error.code != THROTTLED or number == TRIES - 1:
                    raise ApiFailure(service, action, error) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
        raise AssertionError("unreachable")

    def iam(self, action: str, /, **params: Any) -> Doc:
        return self(action, service="iam", **params)

    def removed(
        self, action: str, not_found_codes: tuple[str, ...], /, *, service: str = "ec2", **params: Any
    ) -> None:
        """A call that removes something: what is gone already is no error, what depends on it is waited
        for."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self(action, service=service, **params)
            except ApiFailure as failure:
                if failure.code in not_found_codes:
                    return
                waits = failure.code in {"DependencyViolation", "InvalidPlacementGroup.InUse"}
                if not waits or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


class Kind(Protocol):
    """A resource type. Properties are named as Pulumi names them."""

    label: str
    """What the real provider calls it in its errors."""

    def create(self, api: Api, inputs: Props, tags: Mapping[str, str]) -> str:
        """Make it; the id. `tags` are the resource's and the provider's default ones."""
        ...

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        """All that can be seen of it, or None when it is gone. `Tags` is what AWS holds, as a mapping."""
        ...

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """Make the changes of `changed` (top-level names; tags are done by the caller). Without a method of
        its own, any other change of a type replaces."""

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        """Remove it. What is gone already is no error."""
        ...


class Listed(Kind, ABC):
    """A resource type of EC2 that one call describes by its id, and one deletes.

    `name`: of the type in these calls (`DescribeNAMEs`, `DeleteNAME`); `id_name`: of the id; `gone`: the
    codes of the refusal where there is none of this id.
    """

    name: ClassVar[str]
    id_name: ClassVar[str]
    gone: ClassVar[tuple[str, ...]]

    def find(self, api: Api, resource_id: str) -> Doc | None:
        """What EC2 says of it, None when it is gone."""
        key, ids = f"{self.name}s", {f"{self.id_name}s": [resource_id]}
        return first(api, f"Describe{key}", key, self.gone, **ids)

    @abstractmethod
    def properties(self, api: Api, resource_id: str, doc: Doc) -> Props:
        """The properties of a document, but its tags."""

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        doc = self.find(api, resource_id)
        if doc is None:
            return None
        return {**self.properties(api, resource_id, doc), "Tags": tags_in(doc)}

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(f"Delete{self.name}", self.gone, **{self.id_name: resource_id})


def specification(kind: str, tags: Mapping[str, str]) -> list[Doc] | None:
    """TagSpecifications of one resource type."""
    if not tags:
        return None
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]}
    ]


def tags_in(doc: Doc) -> dict[str, str]:
    """The tags of a document, without AWS's own."""
    return {
        tag["Key"]: tag.get("Value", "") for tag in doc.get("Tags") or () if not tag["Key"].startswith("aws:")
    }


def first(api: Api, action: str, key: str, not_found_codes: tuple[str, ...], /, **params: Any) -> Doc | None:
    """The one document a Describe call answers, or None where it says that there is none."""
    try:
        docs = api(action, **params)[key]
    except ApiFailure as failure:
        if failure.code in not_found_codes:
            return None
        raise
    return docs[0] if docs else None


def pascal(value: Any, rename: Mapping[str, str] | None = None) -> Any:
    """camelCase keys as EC2's, all the way down. `rename` has those that are called otherwise."""
    if isinstance(value, Mapping):
        return {
            (rename or {}).get(key, key[:1].upper() + key[1:]): pascal(item, rename)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [pascal(item, rename) for item in value]
    return value


def camel(value: Any, rename: Mapping[str, str] | None = None) -> Any:
    """The other way round; `rename` is that of `pascal`."""
    back = {pulumi_name: api_name for api_name, pulumi_name in (rename or {}).items()}

    def walk(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {back.get(key, key[:1].lower() + key[1:]): walk(inner) for key, inner in item.items()}
        return [walk(inner) for inner in item] if isinstance(item, list) else item

    return walk(value)


def truth(value: Any) -> Any:
    """Some properties are booleans that Pulumi carries as text."""
    return value == "true" if value in ("true", "false") else value


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
