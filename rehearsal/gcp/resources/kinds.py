"""What a resource type is to the provider, and those types that one call makes and one removes."""

from __future__ import annotations

from typing import Any, Protocol

from orch.rehearsal.gcp.resources.calls import API, Api, ApiFailure, CallFailed, OperationFailure
from orch.rehearsal.store import Doc

Props = dict[str, Any]


class Kind(Protocol):
    """A resource type. Properties are named as Pulumi names them; `effectiveLabels` among the inputs are the
    labels that the cloud is to hold."""

    def create(self, api: Api, inputs: Props) -> str:
        """Make it; the id. One whose operation fails is not kept. Raises CallFailed."""
        ...

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        """All that can be seen of it, or None when it is gone. `Labels` is what the cloud holds."""
        ...

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """Make the changes of `changed` (top-level names)."""
        ...

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        """Remove it. What is gone already is no error."""
        ...


class Generated:
    """A type whose provider code is generated from a description of the API."""

    title: str
    """What the real provider calls it in its errors."""

    path_template: str
    """Its id, as a template over `project`, `region`, `zone` and the inputs."""

    fields: tuple[str, ...] = ()
    """What is sent, and read, as it is."""

    update_with = "PATCH"

    def body(self, api: Api, inputs: Props) -> Doc:
        """The request that makes it."""
        return body_fields(inputs, *self.fields)

    def outputs(self, doc: Doc, state: Props) -> Props:
        """What is read."""
        return output_fields(doc, *self.fields)

    def path(self, api: Api, inputs: Props) -> str:
        places = {"project": api.project, "region": api.region, "zone": api.zone}
        return self.path_template.format(**{**inputs, **places})

    def create(self, api: Api, inputs: Props) -> str:
        path = self.path(api, inputs)
        try:
            operation = api.send("POST", path.rpartition("/")[0], self.body(api, inputs))
        except ApiFailure as failure:
            raise CallFailed(f"Error creating {self.title}: {failure}") from failure
        try:
            api.wait(f"Creating {self.title}", operation)
        except OperationFailure as failure:
            raise CallFailed(f"Error waiting to create {self.title}: {failure}") from failure
        return path

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        try:
            doc = api.get(resource_id)
        except ApiFailure as failure:
            raise CallFailed(self._error_text(resource_id, failure)) from failure
        return None if doc is None else self.outputs(doc, state)

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        body = {key: value for key, value in self.body(api, inputs).items() if key != "name"}
        self.change(api, resource_id, self.update_with, resource_id, body)

    def change(
        self, api: Api, resource_id: str, method: str, path: str, body: Doc | None = None, **params: Any
    ) -> None:
        try:
            api.perform(f"Updating {self.title}", method, path, body, **params)
        except ApiFailure as failure:
            raise CallFailed(f'Error updating {self.title} "{resource_id}": {failure}') from failure

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        api.removed(lambda why: self._error_text(resource_id, why), f"Deleting {self.title}", resource_id)

    def _error_text(self, resource_id: str, failure: ApiFailure) -> str:
        return f'Error when reading or editing Compute{self.title} "{resource_id}": {failure}'


def body_fields(inputs: Props, *names: str, **renamed: str) -> Doc:
    """Those of the inputs that are given. `renamed`: API's name -> Pulumi's."""
    body = {name: inputs[name] for name in names if inputs.get(name) is not None}
    return body | {api: inputs[name] for api, name in renamed.items() if inputs.get(name) is not None}


def output_fields(doc: Doc, *names: str, **renamed: str) -> Props:
    """Those fields of a document as properties; one that is not there is empty. `renamed`: Pulumi's name ->
    API's."""
    outputs = {name: doc[name] for name in names if name in doc}
    return outputs | {name: doc[api] for name, api in renamed.items() if api in doc}


def last(link: object) -> str:
    """The name at the end of a URL."""
    return str(link or "").rpartition("/")[2]


def full(link: object) -> str:
    """A path as the URL that the API answers with."""
    text = str(link or "")
    return API + text if text.startswith("projects/") else text
