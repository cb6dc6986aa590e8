"""Kinds of objects that a controller brings: schemas in few words, and their installation."""

from __future__ import annotations

import time
from contextlib import suppress

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc

ANY: Doc = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT: Doc = {"type": "string"}
TEXTS: Doc = {"type": "object", "additionalProperties": {"type": "string"}}
NUMBER: Doc = {"type": "integer"}
FLAG: Doc = {"type": "boolean"}
AMOUNT: Doc = {"x-kubernetes-int-or-string": True}


def fields(**schemas: Doc) -> Doc:
    """An object with these fields; others are dropped, or refused by strict clients."""
    return {"type": "object", "properties": schemas}


def list_of(of: Doc) -> Doc:
    """A list."""
    return {"type": "array", "items": of}


def one_of(*words: str) -> Doc:
    """A text that is one of these."""
    return {**TEXT, "enum": list(words)}


def definition(group: str, version: str, kind: str, plural: str, schema: Doc, *, namespaced: bool) -> Doc:
    """A CustomResourceDefinition with a status."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def install(api: Api, definitions: list[Doc]) -> None:
    """Make kinds of objects, and wait until they are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for each in definitions:
        with suppress(ApiError):
            api.create(path, each)
    for each in definitions:
        while True:
            established = api.get(f"{path}/{each['metadata']['name']}").get("status", {})
            if any(
                row["type"] == "Established" and row["status"] == "True"
                for row in established.get("conditions") or []
            ):
                break
            time.sleep(0.1)
