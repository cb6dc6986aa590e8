"""Whose account nodes are made in, as clouds that tell nobody's identity are logged in to."""

from __future__ import annotations

import pytest

from orch.components import registry
from orch.components.cloud_errors import CloudRefused
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.backends.runpod import RunpodSettings

KEY = {"creds": {"type": "api_key", "api_key": "s3cret"}}
VARIABLES = (
    "CRUSOE_ACCESS_KEY_ID",
    "CRUSOE_SECRET_KEY",
    "CRUSOE_DEFAULT_PROJECT",
    "LAMBDA_API_KEY",
    "NEBIUS_IAM_TOKEN",
    "RUNPOD_API_KEY",
)


def whom(name: str, *settings: BackendSettings, session: object = None) -> str | None:
    found = registry.account(name, settings, lambda asked: session if asked == name else None)
    return found.words if found is not None else None


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [("lambda", LambdaSettings, "Lambda account"), ("runpod", RunpodSettings, "RunPod account")],
)
def test_an_api_key_is_told_by_where_it_is_from(
    name: str, model: type[BackendSettings], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whom(name, model.model_validate(KEY)) == f"{words} of the API key of orch.yml"
    with pytest.raises(CloudRefused, match="no credentials"):
        whom(name)
    variable = f"{name.upper()}_API_KEY"
    monkeypatch.setenv(variable, "s3cret")
    assert whom(name) == f"{words} of the API key in {variable}"
    assert whom(name, session=object()) == words


def test_crusoe_is_told_by_project_and_the_id_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRUSOE_ACCESS_KEY_ID", "AKEY")
    monkeypatch.setenv("CRUSOE_SECRET_KEY", "c2VjcmV0")
    settings = CrusoeSettings(project_id="p-1")
    assert whom("crusoe", settings) == "Crusoe project p-1 with the access key AKEY"
    with pytest.raises(CloudRefused, match="no project of Crusoe"):
        whom("crusoe")


def test_nebius_is_told_by_service_account_or_by_the_way_of_its_sdk(
    monkeypatch: pytest.MonkeyPatch, pem: str
) -> None:
    account = {"type": "service_account", "service_account_id": "sa-1", "public_key_id": "pk-1"}
    creds = {**account, "private_key_content": pem}
    settings = NebiusSettings.model_validate({"creds": creds, "projects": ["project-a"]})
    assert whom("nebius", settings) == "Nebius projects project-a as the service account sa-1"
    assert whom("nebius") == "Nebius account by the profile in ~/.nebius/config.yaml"
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "t")
    assert whom("nebius") == "Nebius account by the token in NEBIUS_IAM_TOKEN"
    assert whom("nebius", settings, session=object()) == "Nebius projects project-a"


@pytest.fixture(scope="module")
def pem() -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Ed25519PrivateKey.generate()
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize("name", ["local", "ssh", "kubernetes"])
def test_where_nobody_logs_in_to_make_nodes_there_is_no_account(name: str) -> None:
    assert whom(name) is None
