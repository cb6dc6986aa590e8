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
def told(doing: str) -> Generator[None, None, None]:
    """boto3's errors as ours."""
    known: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except known.ClientError as error:
        said: Mapping[str, str] = error.response.get("Error", {})
        found = errors.by_code(said.get("Code", ""), said.get("Message", ""))
        raise CloudRefused(
            f"{found.meaning}: could not {doing}",
            error=found,
            detail=f"{error.operation_name}: {found.code}: {found.message}",
            hint=found.hint,
            code=found.orch,
        ) from error
    except (known.NoCredentialsError, known.PartialCredentialsError, known.ProfileNotFound) as error:
        raise CloudRefused(
            "there are no AWS credentials",
            detail=str(error),
            hint="`aws configure`, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `creds` in orch.yml",
            code="ORCH303",
        ) from error
    except known.BotoCoreError as error:
        raise CloudRefused(f"AWS cannot be reached to {doing}", detail=str(error), code="ORCH358") from error


def pages(client: Any, call: str, key: str, **words: Any) -> Iterator[Mapping[str, Any]]:
    for page in client.get_paginator(call).paginate(**words):
        yield from cast("tuple[Mapping[str, Any], ...]", page.get(key, ()))
