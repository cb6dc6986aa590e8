"""What AWS refuses to answer, as errors of ours."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from orch.components.aws.account import errors
from orch.components.cloud_errors import CloudRefused
from orch.spec.cursors import Cursors

STRANGER = "OrchStranger"
"""The key of a parsed answer under which its address is, if a stranger answered with an error of a server."""


def stranger(operation: str, address: str, status: int, body: bytes) -> CloudRefused:
    """Return the error for an answer that is none of AWS's."""
    text = " ".join(body[:200].decode(errors="replace").split())
    return CloudRefused(
        f"AWS cannot be reached to do {operation}: something else answers at its address",
        status=status,
        where=address,
        detail=f"HTTP {status}: {text or 'an empty answer'}",
        hint="does a proxy or a network in between want a login? Look at HTTPS_PROXY, and at `endpoint_url` "
        "of `aws` in orch.yml",
        code="ORCH358",
    )


def client_error() -> Any:
    return importlib.import_module("botocore.exceptions").ClientError


@contextmanager
def translate_errors(action: str) -> Generator[None, None, None]:
    """boto3's errors as ours."""
    exceptions: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except exceptions.ClientError as error:
        if address := error.response.get(STRANGER):
            status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
            raise stranger(error.operation_name, address, status, b"") from error
        response: Mapping[str, str] = error.response.get("Error", {})
        cloud_error = errors.by_code(response.get("Code", ""), response.get("Message", ""))
        raise CloudRefused(
            f"{cloud_error.meaning}: could not {action}",
            error=cloud_error,
            status=error.response.get("ResponseMetadata", {}).get("HTTPStatusCode"),
            detail=f"{error.operation_name}: {cloud_error.code}: {cloud_error.message}",
            hint=cloud_error.hint,
            code=cloud_error.orch,
        ) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
    ) as error:
        raise CloudRefused(
            "there are no AWS credentials",
            detail=str(error),
            hint="`aws configure`, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `creds` in orch.yml",
            code="ORCH303",
        ) from error
    except exceptions.WaiterError as error:
        raise CloudRefused(
            f"AWS had not finished in time, or failed: could not {action}",
            detail=str(error),
            hint="look at it in the console, then run the command again",
        ) from error
    except (exceptions.BotoCoreError, _parser_error()) as error:
        raise CloudRefused(f"AWS cannot be reached to {action}", detail=str(error), code="ORCH358") from error


def _parser_error() -> Any:
    """The error of an answer that does not read, which is none of botocore's other errors."""
    return importlib.import_module("botocore.parsers").ResponseParserError


def pages(client: Any, call: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a list. Raises CloudRefused (ORCH358) for a list that does not end: botocore stops at
    a token that is the one before, and follows two in turn for ever."""
    cursors = Cursors(_endless)
    for page in client.get_paginator(call).paginate(**arguments):
        yield from cast("tuple[Mapping[str, Any], ...]", page.get(key, ()))
        cursors.next(page.get("NextToken") or page.get("Marker") or page.get("NextMarker"))


def _endless(why: str) -> CloudRefused:
    return CloudRefused("AWS answers with a list that does not end", detail=why, code="ORCH358")
