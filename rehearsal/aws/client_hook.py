"""boto3 on a simulated account: each request is answered in this process, before it would be sent.

The request is read and the answer written by botocore's own service models, so that a client behaves as with
AWS: its parameters are validated, its retries retry, its paginators page. No credentials are looked for and
nothing is sent.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.store import Doc

if TYPE_CHECKING:
    import boto3
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse

Shape = Any
OperationModel = Any
"""botocore's models; it has no types for what they hold."""

SERVICES = frozenset({"ec2", "efs", "fsx", "iam", "ssm", "service-quotas", "sts"})


JSON = ("json", "rest-json")
"""Protocols whose answers are JSON."""


def session(cloud: Cloud, region: str | None = None) -> boto3.Session:
    """A boto3 session whose clients all speak to `cloud`."""
    import boto3
    from botocore.session import Session

    botocore_session = Session()
    botocore_session.register_component("data_loader", _models())
    boto3_session = boto3.Session(
        botocore_session=botocore_session,
        aws_access_key_id="AKIAREHEARSAL0000000",
        aws_secret_access_key="rehearsal",
        region_name=region or "us-east-1",
    )
    bind(boto3_session, cloud)
    return boto3_session


@cache
def _models() -> Any:
    """botocore's service models, of which one is megabytes: read once, however many sessions there are."""
    from botocore.loaders import create_loader

    return create_loader()


def bind(session: boto3.Session, cloud: Cloud) -> None:
    """Let every client of the session speak to `cloud`."""
    models: dict[str, Any] = {}

    def answer(request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        _before, service, operation = event_name.split(".")
        if service not in SERVICES:
            raise RuntimeError(f"{service} is not simulated: nothing is sent during a rehearsal")
        if service not in models:
            models[service] = _model(session, service)
        return _respond(cloud, models[service].operation_model(operation), service, request)

    session.events.register("before-send", answer)


def _model(session: Any, service: str) -> Any:
    return session._session.get_service_model(service)


def _respond(
    cloud: Cloud, operation: OperationModel, service: str, request: AWSPreparedRequest
) -> AWSResponse:
    from botocore.awsrequest import AWSResponse

    protocol = _protocol(operation)
    body = request.body.decode() if isinstance(request.body, bytes) else str(request.body or "")
    region = _region(request.headers.get("Authorization"))
    try:
        if protocol == "rest-json":
            params = _read_rest(operation, request.url, body)
        else:
            params = _read_json(operation, body) if protocol == "json" else _read_query(operation, body)
        result = cloud.call(operation.name, params, service=service, region=region, caller="boto3")
        status, text = 200, _write(protocol, operation, result)
    except AwsError as error:
        status, text = error.status, _write_error(protocol, error)
    kind = "application/x-amz-json-1.1" if protocol in JSON else "text/xml"
    return AWSResponse(request.url, status, {"Content-Type": kind}, _Raw(text.encode()))


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def _region(authorization: str | bytes | None) -> str:
    text = authorization.decode() if isinstance(authorization, bytes) else authorization or ""
    match = re.search(r"Credential=[^/]+/\d+/([^/]+)/", text)
    return match[1] if match else "us-east-1"


def _protocol(operation: Any) -> str:
    return str(operation.service_model.metadata["protocol"])


# -- reading -----------------------------------------------------------------------------------------------


def _read_json(operation: OperationModel, body: str) -> Doc:
    return json.loads(body) if body else {}


def _read_rest(operation: OperationModel, url: str, body: str) -> Doc:
    """Parameters of the path, of the query and of the body, by their names in the model."""
    parts, members = urlsplit(url), operation.input_shape.members
    template = str(operation.http["requestUri"]).partition("?")[0]
    names = re.findall(r"{(\w+)\+?}", template)
    pattern = re.sub(r"{\w+\+?}", "([^/]+)", template)
    match = re.fullmatch(pattern, parts.path)
    in_path = dict(zip(names, map(unquote, match.groups() if match else ()), strict=False))
    query = parse_qs(parts.query)
    params = _read_json(operation, body)
    for key, member in members.items():
        location, name = member.serialization.get("location"), str(member.serialization.get("name", key))
        if location == "uri" and name in in_path:
            params[key] = in_path[name]
        elif location == "querystring" and name in query:
            listed = member.type_name == "list"
            params[key] = query[name] if listed else _scalar(member.type_name, query[name][0])
    return params


def _read_query(operation: OperationModel, body: str) -> Doc:
    """The flat parameters of EC2's and the query protocol, as the nested ones they came from."""
    fields = dict(parse_qsl(body, keep_blank_values=True))
    shape = operation.input_shape
    if shape is None:
        return {}
    return _read(shape, "", _Tree(fields), _protocol(operation)) or {}


class _Tree:
    """Flat names `A.1.B` as a tree, for lookups by prefix."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.values = fields
        self.prefixes = {
            ".".join(name.split(".")[:depth]) for name in fields for depth in range(1, name.count(".") + 2)
        }


def _read(shape: Shape, name: str, tree: _Tree, protocol: str) -> Any:
    kind = shape.type_name
    if name and name not in tree.prefixes:
        return None
    if kind == "structure":
        values = {}
        for key, member in shape.members.items():
            part = _query_name(key, member, protocol)
            value = _read(member, f"{name}.{part}" if name else part, tree, protocol)
            if value is not None:
                values[key] = value
        return values
    if kind == "list":
        inner = shape.member
        base = name if protocol == "ec2" or shape.serialization.get("flattened") else f"{name}.member"
        found_list = []
        number = 1
        while f"{base}.{number}" in tree.prefixes:
            found_list.append(_read(inner, f"{base}.{number}", tree, protocol))
            number += 1
        return found_list
    text = tree.values.get(name)
    return None if text is None else _scalar(kind, text)


def _query_name(key: str, member: Shape, protocol: str) -> str:
    serialization = member.serialization
    if protocol == "ec2":
        if "queryName" in serialization:
            return str(serialization["queryName"])
        name = str(serialization.get("name", key))
        return name[0].upper() + name[1:]
    return str(serialization.get("name", key))


def _scalar(kind: str, text: str) -> Any:
    if kind == "boolean":
        return text == "true"
    if kind in {"integer", "long"}:
        return int(text)
    if kind in {"float", "double"}:
        return float(text)
    return text


# -- writing -----------------------------------------------------------------------------------------------


def _write(protocol: str, operation: OperationModel, result: Doc) -> str:
    if protocol in JSON:
        return json.dumps(_json(operation.output_shape, result))
    shape = operation.output_shape
    inner = "".join(_members(shape, result, protocol)) if shape is not None else ""
    if protocol == "ec2":
        return f"<{operation.name}Response><requestId>rehearsal</requestId>{inner}</{operation.name}Response>"
    return (
        f"<{operation.name}Response><{operation.name}Result>{inner}</{operation.name}Result>"
        f"<ResponseMetadata><RequestId>rehearsal</RequestId></ResponseMetadata></{operation.name}Response>"
    )


def _json(shape: Shape | None, value: Any) -> Any:
    """JSON of a result: timestamps are numbers there."""
    if shape is None or value is None:
        return value
    if shape.type_name == "structure":
        members = shape.members
        return {key: _json(members[key], item) for key, item in value.items() if key in members}
    if shape.type_name == "list":
        return [_json(shape.member, item) for item in value]
    if shape.type_name == "timestamp":
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    return value


def _members(shape: Shape, value: Doc, protocol: str) -> Iterator[str]:
    for key, member in shape.members.items():
        if value.get(key) is not None:
            yield _xml(member, str(member.serialization.get("name", key)), value[key], protocol)


def _xml(shape: Shape, name: str, value: Any, protocol: str) -> str:
    kind = shape.type_name
    if kind == "structure":
        return f"<{name}>{''.join(_members(shape, value, protocol))}</{name}>"
    if kind == "list":
        member = shape.member
        if shape.serialization.get("flattened"):
            return "".join(
                _xml(member, str(member.serialization.get("name", name)), one, protocol) for one in value
            )
        each = str(member.serialization.get("name", "member"))
        return f"<{name}>{''.join(_xml(member, each, one, protocol) for one in value)}</{name}>"
    if kind == "map":
        entries = "".join(
            f"<entry><key>{escape(str(k))}</key><value>{escape(str(v))}</value></entry>"
            for k, v in value.items()
        )
        return f"<{name}>{entries}</{name}>"
    if isinstance(value, bool):
        return f"<{name}>{str(value).lower()}</{name}>"
    return f"<{name}>{escape(str(value))}</{name}>"


def _write_error(protocol: str, error: AwsError) -> str:
    if protocol in JSON:
        return json.dumps({"__type": error.code, "message": error.message})
    inner = f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    if protocol == "ec2":
        return f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>rehearsal</RequestID></Response>"
    kind = "Receiver" if error.status >= 500 else "Sender"
    error_xml = f"<Error><Type>{kind}</Type>{inner}</Error>"
    return f"<ErrorResponse>{error_xml}<RequestId>rehearsal</RequestId></ErrorResponse>"
