"""Checks of labels, tags and metadata of an instance. Sources: rehearsal/README.md, "GCP: instances"."""

from __future__ import annotations

import re
from typing import Any

from orch.rehearsal.gcp.api.errors import GcpError, invalid
from orch.rehearsal.gcp.api.methods import NAME, Request, fingerprint
from orch.rehearsal.store import Doc

MOST_LABELS, MOST_TAGS = 64, 64
MOST_VALUE, MOST_METADATA = 256 * 1024, 512 * 1024

KEY = re.compile(r"[a-z\u00df-\uffff][\w\u00df-\uffff-]{0,62}")
VALUE = re.compile(r"[a-z0-9_\u00df-\uffff-]{0,63}")
METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")


def checked_labels(labels: Any, field: str) -> dict[str, str]:
    result = {str(key): str(value) for key, value in (labels or {}).items()}
    if len(result) > MOST_LABELS:
        raise invalid(field, len(result), f"Too many labels: at most {MOST_LABELS} are allowed.")
    for key, value in result.items():
        if not KEY.fullmatch(key) or key != key.lower():
            raise invalid(
                f"{field}['{key}']",
                key,
                "Label keys begin with a lowercase letter and have at most 63 characters.",
            )
        if not VALUE.fullmatch(value):
            raise invalid(
                f"{field}['{key}']",
                value,
                "Label values have lowercase letters, digits, underscores and dashes, at most 63 characters.",
            )
    return result


def checked_tags(tags: Any, field: str) -> Doc:
    items = list((tags or {}).get("items") or ())
    if len(items) > MOST_TAGS:
        raise invalid(field, len(items), f"Too many tags: at most {MOST_TAGS} are allowed.")
    for item in items:
        if not NAME.fullmatch(str(item)):
            raise invalid(f"{field}.items[0]", item, f"Must be a match of regex '{NAME.pattern}'")
    return (
        {"items": items, "fingerprint": fingerprint(items)} if items else {"fingerprint": fingerprint(items)}
    )


def checked_metadata(metadata: Any, field: str) -> Doc:
    items = [
        {"key": str(one["key"]), "value": str(one.get("value", ""))}
        for one in (metadata or {}).get("items") or ()
    ]
    keys = [one["key"] for one in items]
    for one in items:
        if not METADATA_KEY.fullmatch(one["key"]):
            raise invalid(
                f"{field}.items[0].key", one["key"], f"Must be a match of regex '{METADATA_KEY.pattern}'"
            )
        if len(one["value"].encode()) > MOST_VALUE:
            raise invalid(
                f"{field}.items[0].value", "", f"Metadata values are at most {MOST_VALUE} bytes long."
            )
    if len(set(keys)) != len(keys):
        raise invalid(f"{field}.items", keys[-1], "Duplicate metadata key.")
    if sum(len(one["key"]) + len(one["value"].encode()) for one in items) > MOST_METADATA:
        raise invalid(field, "", f"Metadata is at most {MOST_METADATA} bytes long.")
    doc: Doc = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
    return {**doc, "items": items} if items else doc


def relabel(request: Request, path: str, kind: str) -> Doc:
    """setLabels of any resource; the request carries the fingerprint of the labels that it replaces."""
    doc = request.thing(kind, path)
    if request.body.get("labelFingerprint") != doc["labelFingerprint"]:
        raise GcpError("conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    doc["labels"] = checked_labels(request.body.get("labels"), "labels")
    doc["labelFingerprint"] = fingerprint(doc["labels"])
    return request.add(path, kind, doc)
