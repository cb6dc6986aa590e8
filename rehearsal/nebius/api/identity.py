"""Tokens, tenants, projects, operations."""

from __future__ import annotations

import secrets
from typing import Any

from orch.rehearsal.nebius.api.errors import not_found, unauthenticated
from orch.rehearsal.nebius.api.methods import Request, method, page, polled
from orch.rehearsal.nebius.data.tables import TENANT
from orch.rehearsal.store import Doc

TOKEN_S = 43_200
AUDIENCE = "token-service.iam.new.nebiuscloud.net"
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"


@method("iam.v1.TokenExchangeService", "Exchange")
def exchange(request: Request) -> Doc:
    """A token for a JWT that a known key of a service account signed. Source: nebius/api README, "Auth"."""
    import jwt

    if request.body.get("grant_type") != GRANT:
        raise unauthenticated("unsupported grant_type")
    assertion = str(request.body.get("subject_token") or "")
    try:
        key_id = jwt.get_unverified_header(assertion).get("kid")
        key = request.store.get(f"key {key_id}", "auth-public-key")
        if key is None:
            raise unauthenticated(f"public key {key_id} not found")
        claims: dict[str, Any] = jwt.decode(assertion, key["public"], algorithms=["RS256"], audience=AUDIENCE)
    except jwt.PyJWTError as error:
        raise unauthenticated(f"invalid JWT: {error}") from error
    if claims.get("iss") != key["account"] or claims.get("sub") != key["account"]:
        raise unauthenticated("the JWT is of another service account than its key")
    token = f"ne1.{secrets.token_urlsafe(24)}"
    document = {"account": key["account"], "ends": request.account.now() + TOKEN_S}
    request.store.put(f"token {token}", "token", "", document)
    return {"access_token": token, "token_type": "Bearer", "expires_in": str(TOKEN_S)}


@method("iam.v2.TenantService", "List")
def tenants(request: Request) -> Doc:
    return page(request, [{"metadata": {"id": request.account.identity(TENANT), "name": "orch-rehearsal"}}])


@method("iam.v2.ProjectService", "List")
def projects(request: Request) -> Doc:
    rows = [doc for _, doc in request.store.each("project")]
    return page(request, [each for each in rows if each["metadata"]["parent_id"] == request.parent])


@method("iam.v2.ProjectService", "Get")
def project(request: Request) -> Doc:
    doc = request.store.get(str(request.body.get("id") or ""), "project")
    if doc is None:
        raise not_found(str(request.body.get("id")), service="iam")
    return doc


@method("common.v1.OperationService", "Get")
def operation(request: Request) -> Doc:
    doc = request.store.get(str(request.body.get("id") or ""), "operation")
    if doc is None:
        raise not_found(str(request.body.get("id")), service="common")
    return polled(request, doc, ready=_settled(request, doc))


@method("common.v1.OperationService", "List")
def operations(request: Request) -> Doc:
    resource = str(request.body.get("resource_id") or "")
    rows = [doc for _, doc in request.store.each("operation") if doc["resource_id"] == resource]
    ready = [polled(request, each, ready=_settled(request, each)) for each in reversed(rows)]
    return {"operations": page(request, ready)["items"]}


def _settled(request: Request, doc: Doc) -> bool:
    """Whether what the operation does is done."""
    if not doc["_service"].endswith(".InstanceService"):
        return True
    from orch.rehearsal.nebius.api.instances import advanced

    instance = request.store.get(doc["resource_id"], "instance")
    if instance is None:
        return True
    return not advanced(request, instance)["status"].get("reconciling", False)
