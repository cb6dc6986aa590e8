"""Signing requests to Crusoe. Pure.

Source: crusoecloud/client-go auth/v1/auth.go @e23c062.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timezone

VERSION = "1.0"


def signature(secret: str, method: str, path: str, query: str, stamp: str) -> str:
    """The signature of a request without its body. Raises ValueError for a secret that is not base64url.

    `path`: with the version of the API; `query`: as it is sent; `stamp`: RFC 3339.
    """
    key = urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    message = f"{path}\n{query}\n{method}\n{stamp}\n"
    digest = hmac.new(key, message.encode("ascii"), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def headers(key: str, secret: str, method: str, path: str, query: str) -> dict[str, str]:
    """What a request bears that is sent now. Raises ValueError."""
    stamp = datetime.now(timezone.utc).replace(microsecond=0).isoformat()
    signed = signature(secret, method, path, query, stamp)
    return {"X-Crusoe-Timestamp": stamp, "Authorization": f"Bearer {VERSION}:{key}:{signed}"}
