"""Clients of AWS, guarded against answers that are none of AWS's: the page of a captive portal, the error of
a proxy. botocore reads them as an empty answer, or fails with an error of its parser."""

from __future__ import annotations

import json
import re
from typing import Any

from orch.components.aws.account.client_errors import STRANGER, stranger

_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>)?\s*<(\w+)[\s>]")
"""The first element of an XML document."""


def guarded(client: Any) -> Any:
    """Return the same client, whose calls raise CloudRefused (ORCH358) with the address for such an answer.

    An error of the server's (5xx) is left to botocore, which tries again.
    """
    address = str(client.meta.endpoint_url)

    def check(operation_model: Any, response_dict: Any, customized_response_dict: Any, **_: Any) -> None:
        status, body = int(response_dict["status_code"]), bytes(response_dict["body"] or b"")
        protocol = str(operation_model.service_model.resolved_protocol)
        if is_of_aws(protocol, operation_model.name, status, body):
            return
        if status >= 500:
            response_dict["body"] = b""
            customized_response_dict[STRANGER] = address
            return
        raise stranger(operation_model.name, address, status, body)

    client.meta.events.register("before-parse.*.*", check, unique_id="orch-guarded")
    return client


def is_of_aws(protocol: str, operation: str, status: int, body: bytes) -> bool:
    """Whether an answer has the form that an operation of this protocol answers in.

    Source: AWS query, EC2 query, JSON 1.1 and REST-JSON protocols (smithy.io, "AWS Protocols"). What other
    protocols answer is taken as it is.
    """
    if protocol in ("json", "rest-json"):
        return not body or _is_object(body)
    if protocol in ("ec2", "query"):
        root = _ROOT.match(body)
        found = root[1].decode() if root else ""
        return found == f"{operation}Response" if status < 300 else found in ("Response", "ErrorResponse")
    return True


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False
