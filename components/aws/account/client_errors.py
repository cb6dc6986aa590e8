"""What AWS refuses to answer, as errors of ours."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from orch.components.aws.account import errors
from orch.components.cloud_errors import CloudRefused


def client_error() -> Any:
    return importlib.import_module("botocore.exceptions").ClientError


@contextmanager
def translate_errors(action: str) -> Generator[None, None, None]:
    """boto3's errors as ours."""
    exceptions: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except exceptions.ClientError as error:
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
    except exceptions.BotoCoreError as error:
        raise CloudRefused(f"AWS cannot be reached to {action}", detail=str(error), code="ORCH358") from error


def pages(client: Any, call: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    for page in client.get_paginator(call).paginate(**arguments):
        yield from cast("tuple[Mapping[str, Any], ...]", page.get(key, ()))
