"""The account that each backend acts in: its identity, and what selected it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.strangers import HTML, PORTAL, answering, serving

from orch.components.accounts import REHEARSED, Account
from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account import gather_facts as gcp
from orch.components.nebius.account.client import NebiusClient
from orch.components.nebius.account.methods import DISK
from orch.components.nebius.account.session import login_of, open_session, selected_by
from orch.components.nebius.plugin import NebiusHandler
from orch.components.registry.backends import require_backend
from orch.components.runpod.account.client import Login
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.nebius.service import Session as NebiusSession
from orch.rehearsal.nebius.service import sdk_at
from orch.rehearsal.project import rehearse
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.backends.nebius import NebiusSettings
from orch.stacks.project.project import find

KEY = {"creds": {"type": "api_key", "api_key": "s3cret"}}
VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_DEFAULT_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "CRUSOE_ACCESS_KEY_ID",
    "GCLOUD_PROJECT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "CRUSOE_SECRET_KEY",
    "CRUSOE_DEFAULT_PROJECT",
    "LAMBDA_API_KEY",
    "NEBIUS_IAM_TOKEN",
    "RUNPOD_API_KEY",
)


def found(name: str, *settings: BackendSettings, session: object = None) -> Account:
    account = require_backend(name).account(settings, lambda asked: session if asked == name else None)
    assert account is not None
    return account


def whom(name: str, *settings: BackendSettings, session: object = None) -> str:
    return found(name, *settings, session=session).words


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in (*VARIABLES, REHEARSED):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# -- rehearsed accounts -----------------------------------------------------------------------------------


@pytest.fixture
def rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Account]:
    """Asks a rehearsal of one project, in its first account or another one."""
    (tmp_path / "orch.yml").write_text("project: tests\n")

    def ask(name: str, other: str = "") -> Account:
        monkeypatch.setenv(REHEARSED, other)
        made = rehearse(find(tmp_path), nodes=False).project
        account = require_backend(name).account([], made.session)
        assert account is not None
        return account

    return ask


@pytest.mark.parametrize("name", ["aws", "crusoe", "nebius", "runpod"])
def test_another_account_has_another_identity_and_back_again_it_is_the_first(
    name: str, rehearsed: Callable[..., Account]
) -> None:
    first, other, third = rehearsed(name), rehearsed(name, "dev"), rehearsed(name, "test")
    assert len({first.id, other.id, third.id} - {None}) == 3
    assert other.selected_by == f"{REHEARSED}=dev"
    assert first.selected_by == f"the rehearsal ({REHEARSED} is not set)"
    assert rehearsed(name) == first
    assert rehearsed(name, "dev") == other


# -- AWS --------------------------------------------------------------------------------------------------

REGION = re.compile(r"Credential=[^/]+/\d+/([^/]+)/sts/")


def sts(arn: str, *, knows: str) -> Callable[[str, Mapping[str, str], str], tuple[int, str, str]]:
    """STS of a partition: regions that begin with `knows` know the credentials."""

    def answer(path: str, headers: Mapping[str, str], body: str) -> tuple[int, str, str]:
        assert "Action=GetCallerIdentity" in body
        region = REGION.search(headers["Authorization"])
        if region is None or not region[1].startswith(knows):
            code = "<Code>InvalidClientTokenId</Code><Message>The security token is invalid</Message>"
            return 403, "text/xml", f"<ErrorResponse><Error><Type>Sender</Type>{code}</Error></ErrorResponse>"
        who = f"<Arn>{arn}</Arn><UserId>AIDA</UserId><Account>{arn.split(':')[4]}</Account>"
        result = f"<GetCallerIdentityResult>{who}</GetCallerIdentityResult>"
        return 200, "text/xml", f"<GetCallerIdentityResponse>{result}</GetCallerIdentityResponse>"

    return answer


KEYS = {"creds": {"type": "access_key", "access_key": "AKIA", "secret_key": "s"}}


@pytest.mark.parametrize(
    ("partition", "prefix", "regions"),
    [
        ("aws", "us-east-1", []),
        ("aws", "us-east-1", ["ap-east-1"]),  # not enabled in the account: STS knows the key elsewhere
        ("aws-us-gov", "us-gov-", []),
        ("aws-us-gov", "us-gov-", ["us-gov-east-1"]),
        ("aws-cn", "cn-", []),
    ],
)
def test_aws_is_known_by_partition_and_account_in_each_partition(
    partition: str, prefix: str, regions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = f"arn:{partition}:iam::444455556666:user/ada"
    with serving(sts(arn, knows=prefix)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        account = found("aws", AwsSettings.model_validate({**KEYS, "regions": regions}))
    assert account == Account(
        f"AWS account 444455556666 as {arn}", f"{partition}:444455556666", "creds of orch.yml"
    )


def test_a_key_that_no_partition_knows_is_refused_once_with_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(sts("arn:aws:iam::444455556666:user/ada", knows="nowhere")) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        with pytest.raises(CloudRefused) as refused:
            found("aws", AwsSettings.model_validate(KEYS))
    assert (refused.value.code, refused.value.summary) == (
        "ORCH303",
        "AWS does not accept the credentials: could not log in",
    )


@pytest.mark.parametrize(
    ("variables", "creds", "selected"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s"}, None, "AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "dev"}, None, "AWS_PROFILE=dev"),
        ({"AWS_DEFAULT_PROFILE": "dev"}, None, "AWS_DEFAULT_PROFILE=dev"),
        # The SDK of the provider takes AWS_PROFILE, and so has orch.
        ({"AWS_PROFILE": "dev", "AWS_DEFAULT_PROFILE": "gone"}, None, "AWS_PROFILE=dev"),
        ({"AWS_PROFILE": "gone"}, {"profile": "dev"}, "creds of orch.yml: profile dev"),
        ({}, None, "the default profile of ~/.aws/credentials"),
    ],
)
def test_what_selected_the_credentials_of_aws(
    variables: dict[str, str],
    creds: dict[str, str] | None,
    selected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = "aws_access_key_id = AKIA\naws_secret_access_key = s\n"
    (tmp_path / "credentials").write_text(f"[default]\n{keys}[dev]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    settings = AwsSettings.model_validate({"creds": {"type": "default", **creds}} if creds else {})
    with serving(sts("arn:aws:iam::444455556666:user/ada", knows="")) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        assert found("aws", settings).selected_by == selected


# -- clouds with API keys ---------------------------------------------------------------------------------


def test_an_api_key_is_told_by_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = found("lambda", LambdaSettings.model_validate(KEY))
    assert ours == Account("Lambda account of the API key of orch.yml", None, "creds of orch.yml")
    with pytest.raises(CloudRefused, match="no credentials"):
        found("lambda")
    monkeypatch.setenv("LAMBDA_API_KEY", "s3cret")
    assert found("lambda") == Account(
        "Lambda account of the API key in LAMBDA_API_KEY", None, "LAMBDA_API_KEY"
    )
    assert whom("lambda", session=object()) == "Lambda account"


def test_runpod_is_known_by_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, '{"data": {"myself": {"id": "user_2abc"}}}') as url:
        assert found("runpod", session=Login("s3cret", url)).id == "user_2abc"
    with pytest.raises(CloudRefused, match="no credentials"):
        found("runpod")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, PORTAL, HTML),
        (200, '{"data": {"myself": null}}', "application/json"),
        (200, '{"data": {}}', "application/json"),
    ],
)
def test_who_answers_for_runpod_and_is_not_runpod_is_no_identity(
    status: int, body: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch.components.cloud.rest.client.MOST_PAUSE_S", 0.0)
    with answering(status, body, kind) as url, pytest.raises(CloudRefused) as refused:
        found("runpod", session=Login("s3cret", url))
    assert (refused.value.code, refused.value.where) == ("ORCH358", url)


# -- Crusoe, Nebius, GCP ----------------------------------------------------------------------------------


def test_crusoe_is_known_by_its_project_whichever_key_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRUSOE_ACCESS_KEY_ID", "AKEY")
    monkeypatch.setenv("CRUSOE_SECRET_KEY", "c2VjcmV0")
    monkeypatch.setenv("CRUSOE_DEFAULT_PROJECT", "p-2")
    ours = found("crusoe", CrusoeSettings(project_id="p-1"))
    words = "Crusoe project p-1 with the access key AKEY"
    assert ours == Account(words, "p-1", "project_id of orch.yml")
    theirs = found("crusoe", CrusoeSettings())
    assert (theirs.id, theirs.selected_by) == ("p-2", "CRUSOE_DEFAULT_PROJECT=p-2")
    monkeypatch.delenv("CRUSOE_DEFAULT_PROJECT")
    with pytest.raises(CloudRefused, match="no project of Crusoe"):
        whom("crusoe")


def test_what_selects_the_login_of_nebius(monkeypatch: pytest.MonkeyPatch, pem: str) -> None:
    account = {"type": "service_account", "service_account_id": "sa-1", "public_key_id": "pk-1"}
    settings = NebiusSettings.model_validate({"creds": {**account, "private_key_content": pem}})
    assert login_of(open_session(settings)) == "as the service account sa-1"
    assert selected_by(settings) == "creds of orch.yml"
    assert selected_by(NebiusSettings()) == "the profile in ~/.nebius/config.yaml"
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "t")
    assert selected_by(NebiusSettings()) == "NEBIUS_IAM_TOKEN"
    assert login_of(open_session(NebiusSettings())) == "by the token in NEBIUS_IAM_TOKEN"


@pytest.fixture
def nebius(tmp_path: Path) -> tuple[NebiusCloud, Callable[..., str | None]]:
    """A Nebius account, and its identity to a login with these projects in orch.yml."""
    cloud = NebiusCloud.create(tmp_path / "nebius.db")

    def ask(*projects: str) -> str | None:
        return found("nebius", session=NebiusSession(sdk_at(cloud), projects)).id

    return cloud, ask


def test_a_project_of_a_further_region_leaves_the_identity_of_nebius_as_it_is(
    nebius: tuple[NebiusCloud, Callable[..., str | None]],
) -> None:
    cloud, ask = nebius
    tenant = cloud.tenant
    assert ask() == ask("project-e00eu-north1") == ask("project-e00eu-north1", "project-e00us-central1")
    assert ask() == tenant
    with pytest.raises(CloudRefused, match="ask which tenant this is") as refused:
        ask("project-e00of-another-tenant")
    assert refused.value.code == "ORCH304"
    assert "project-e00of-another-tenant" in str(refused.value.detail)


def test_nothing_of_a_project_that_nebius_does_not_show_is_gone(
    nebius: tuple[NebiusCloud, Callable[..., str | None]],
) -> None:
    client = NebiusClient(NebiusSession(sdk_at(nebius[0])))
    handler = NebiusHandler(DISK, lambda: client, pause_s=0.01)
    here, elsewhere = {"project": "project-e00eu-north1"}, {"project": "project-e00another"}
    assert handler.read("computedisk-e00gone", here) is None
    handler.delete("computedisk-e00gone", here)
    assert (handler.read("computedisk-e00gone", elsewhere) or {})["observed"]["reachable"] is False
    with pytest.raises(CloudRefused, match="tell what is gone of the project project-e00another"):
        handler.delete("computedisk-e00gone", elsewhere)


@pytest.mark.parametrize(
    ("variables", "settings", "selected"),
    [
        ({"GOOGLE_CLOUD_PROJECT": "acme"}, {"project_id": "lab"}, "project_id of orch.yml"),
        (
            {"GOOGLE_CLOUD_PROJECT": "acme"},
            {"creds": {"type": "service_account", "data": "{}"}},
            "creds of orch.yml",
        ),
        ({"GOOGLE_CLOUD_PROJECT": "acme", "GCLOUD_PROJECT": "k"}, {}, "GOOGLE_CLOUD_PROJECT=acme"),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "k.json"}, {}, "GOOGLE_APPLICATION_CREDENTIALS=k.json"),
        ({}, {}, "the default credentials and project of gcloud"),
    ],
)
def test_what_selected_the_project_of_gcp(
    variables: dict[str, str], settings: dict[str, Any], selected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert gcp.selected_by(GcpSettings.model_validate(settings)) == selected


@pytest.fixture(scope="module")
def pem() -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Ed25519PrivateKey.generate()
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize("name", ["local", "ssh", "kubernetes"])
def test_where_nobody_logs_in_to_make_nodes_there_is_no_account(name: str) -> None:
    assert require_backend(name).account([], lambda asked: None) is None
