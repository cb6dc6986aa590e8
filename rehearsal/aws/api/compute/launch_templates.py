"""Launch templates and their versions. Sources: rehearsal/README.md, "Launch templates"."""

from __future__ import annotations

import re
from typing import Any

from orch.rehearsal.aws.api.actions import Request, action, page, path, public, select, stamp
from orch.rehearsal.aws.api.errors import AwsError, missing
from orch.rehearsal.store import Doc


def _create_version(request: Request, template: Doc, data: Doc, description: str | None) -> Doc:
    number = template["LatestVersionNumber"] + 1
    template["LatestVersionNumber"] = number
    version: Doc = {
        "LaunchTemplateId": template["LaunchTemplateId"],
        "LaunchTemplateName": template["LaunchTemplateName"],
        "VersionNumber": number,
        "CreateTime": stamp(request.cloud.now()),
        "CreatedBy": template["CreatedBy"],
        "LaunchTemplateData": data,
        **({"VersionDescription": description} if description else {}),
    }
    request.add(f"{template['LaunchTemplateId']}:{number}", "launch-template-version", version)
    return version


@action("CreateLaunchTemplate")
def create_launch_template(request: Request) -> Doc:
    name = request["LaunchTemplateName"]
    if not re.fullmatch(r"[a-zA-Z0-9().\-/_]{3,128}", name):
        raise AwsError(
            "InvalidLaunchTemplateName.MalformedException",
            "A launch template name must be between 3 and 128 characters, and may contain letters, "
            "numbers, and the "
            "following characters: - ( ) . / _.",
        )
    if request.store.find("launch-template", name, request.region):
        raise AwsError(
            "InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use."
        )
    template_id = request.cloud.new_id("lt")
    template: Doc = {
        "LaunchTemplateId": template_id,
        "LaunchTemplateName": name,
        "CreateTime": stamp(request.cloud.now()),
        "CreatedBy": request.arn("user/rehearsal", "iam").replace(request.region, ""),
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 0,
        "Tags": request.tags_for("launch-template"),
    }
    _create_version(request, template, request["LaunchTemplateData"], request.get("VersionDescription"))
    request.add(template_id, "launch-template", template, name)
    return {"LaunchTemplate": public(template)}


def template_of(request: Request, template_id: str | None, name: str | None) -> Doc:
    if template_id:
        return request.thing("launch-template", template_id)
    named_id = request.store.find("launch-template", name or "", request.region)
    if named_id is None:
        raise AwsError(
            "InvalidLaunchTemplateName.NotFoundException",
            "At least one of the launch templates specified in the request does not exist.",
        )
    return request.thing("launch-template", named_id)


def version_of(request: Request, template: Doc, version: Any) -> Doc:
    """A version of a template. `version`: a number, `$Latest` or `$Default` (the default)."""
    text = str(version or "$Default")
    number = {
        "$Latest": template["LatestVersionNumber"],
        "$Default": template["DefaultVersionNumber"],
    }.get(text, text)
    version_doc = request.store.get(f"{template['LaunchTemplateId']}:{number}", "launch-template-version")
    if version_doc is None:
        raise AwsError(
            "InvalidLaunchTemplateId.VersionNotFound",
            f"Could not find the specified version {text} for the launch template with ID "
            f"{template['LaunchTemplateId']}.",
        )
    return {**version_doc, "DefaultVersion": version_doc["VersionNumber"] == template["DefaultVersionNumber"]}


def over_template(request: Request) -> tuple[Doc, Doc | None]:
    """The request of a launch merged over its launch template, and the template's version."""
    spec = request.get("LaunchTemplate")
    if not spec:
        return dict(request.params), None
    template = template_of(request, spec.get("LaunchTemplateId"), spec.get("LaunchTemplateName"))
    version = version_of(request, template, spec.get("Version"))
    data = dict(version["LaunchTemplateData"])
    if request.get("NetworkInterfaces"):
        data.pop("SecurityGroupIds", None)
    merged = {**data, **{key: value for key, value in request.params.items() if value not in (None, [], {})}}
    if data.get("Placement") and request.get("Placement"):
        merged["Placement"] = {**data["Placement"], **request["Placement"]}
    tags = [*(data.get("TagSpecifications") or ()), *(request.get("TagSpecifications") or ())]
    merged["TagSpecifications"] = tags
    return merged, version


def tags_from(version: Doc | None) -> dict[str, str]:
    """The tags by which an instance tells the version of a template that it was launched from."""
    if version is None:
        return {}
    return {
        "aws:ec2launchtemplate:id": version["LaunchTemplateId"],
        "aws:ec2launchtemplate:version": str(version["VersionNumber"]),
    }


@action("CreateLaunchTemplateVersion")
def create_launch_template_version(request: Request) -> Doc:
    template = template_of(request, request.get("LaunchTemplateId"), request.get("LaunchTemplateName"))
    data = request["LaunchTemplateData"]
    if request.get("SourceVersion"):
        data = {**version_of(request, template, request["SourceVersion"])["LaunchTemplateData"], **data}
    version = _create_version(request, template, data, request.get("VersionDescription"))
    request.add(template["LaunchTemplateId"], "launch-template", template)
    return {"LaunchTemplateVersion": public(version)}


@action("ModifyLaunchTemplate")
def modify_launch_template(request: Request) -> Doc:
    template = template_of(request, request.get("LaunchTemplateId"), request.get("LaunchTemplateName"))
    default = request.get("DefaultVersion") or request.get("SetDefaultVersion")
    if default:
        template["DefaultVersionNumber"] = version_of(request, template, default)["VersionNumber"]
    request.add(template["LaunchTemplateId"], "launch-template", template)
    return {"LaunchTemplate": public(template)}


@action("DescribeLaunchTemplates")
def describe_launch_templates(request: Request) -> Doc:
    fields = {"launch-template-name": path("LaunchTemplateName"), "create-time": path("CreateTime")}
    ids = list(request.get("LaunchTemplateIds") or ())
    ids += [
        template_of(request, None, name)["LaunchTemplateId"]
        for name in request.get("LaunchTemplateNames") or ()
    ]
    return page(request, "LaunchTemplates", select(request, "launch-template", fields, ids=ids))


@action("DescribeLaunchTemplateVersions")
def describe_launch_template_versions(request: Request) -> Doc:
    template = template_of(request, request.get("LaunchTemplateId"), request.get("LaunchTemplateName"))
    versions = request.get("Versions") or range(1, template["LatestVersionNumber"] + 1)
    return page(request, "LaunchTemplateVersions", [version_of(request, template, one) for one in versions])


@action("DeleteLaunchTemplate")
def delete_launch_template(request: Request) -> Doc:
    template = template_of(request, request.get("LaunchTemplateId"), request.get("LaunchTemplateName"))
    template_id = template["LaunchTemplateId"]
    for number in range(1, template["LatestVersionNumber"] + 1):
        request.store.remove(f"{template_id}:{number}")
    request.store.remove(template_id)
    return {"LaunchTemplate": public(template)}


@action("ImportKeyPair")
def import_key_pair(request: Request) -> Doc:
    import base64
    import hashlib

    name = request["KeyName"]
    if request.store.find("key-pair", name, request.region):
        raise AwsError("InvalidKeyPair.Duplicate", f"The keypair '{name}' already exists.")
    material = request["PublicKeyMaterial"]
    text = material.decode() if isinstance(material, bytes) else str(material)
    words = text.split()
    if len(words) < 2 or words[0] not in {"ssh-rsa", "ssh-ed25519"}:
        raise AwsError("InvalidKey.Format", "Key is not in valid OpenSSH public key format")
    try:
        digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
    except ValueError:
        raise AwsError("InvalidKey.Format", "Key is not in valid OpenSSH public key format") from None
    key = request.cloud.new_id("key")
    doc: Doc = {
        "KeyPairId": key,
        "KeyName": name,
        "KeyType": words[0].removeprefix("ssh-"),
        "KeyFingerprint": base64.b64encode(digest).decode(),
        "CreateTime": stamp(request.cloud.now()),
        "Tags": request.tags_for("key-pair"),
        "_public": text,
    }
    request.add(key, "key-pair", doc, name)
    return {k: doc[k] for k in ("KeyPairId", "KeyName", "KeyFingerprint", "Tags")}


def key_named(request: Request, name: str) -> Doc:
    key_id = request.store.find("key-pair", name, request.region)
    if key_id is None:
        raise missing("key-pair", name)
    return request.thing("key-pair", key_id)


@action("DescribeKeyPairs")
def describe_key_pairs(request: Request) -> Doc:
    ids = list(request.get("KeyPairIds") or ())
    ids += [key_named(request, name)["KeyPairId"] for name in request.get("KeyNames") or ()]
    fields = {"key-name": path("KeyName"), "key-pair-id": path("KeyPairId")}
    matches = select(request, "key-pair", fields, ids=ids)
    if request.get("IncludePublicKey"):
        matches = [{**doc, "PublicKey": doc["_public"]} for doc in matches]
    return {"KeyPairs": [public(doc) for doc in matches]}


@action("DeleteKeyPair")
def delete_key_pair(request: Request) -> Doc:
    key_id = request.get("KeyPairId") or request.store.find(
        "key-pair", request.get("KeyName") or "", request.region
    )
    if key_id:
        request.store.remove(key_id)
    return {"Return": True}
