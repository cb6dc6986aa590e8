"""Changes to a simulated GCP account behind the back of what is recorded, as a person in the console does."""

from __future__ import annotations

from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.api.errors import GcpError
from orch.rehearsal.store import Doc

CALLER = "drift"


def call(cloud: GcpCloud, method: str, path: str, params: Doc | None = None, body: Doc | None = None) -> Doc:
    """One call of the API. Raises GcpError when it is refused, or its operation failed."""
    status, answer = cloud.request(method, path, params, body, caller=CALLER)
    if status != 200:
        error = answer["error"]
        raise GcpError(error["errors"][0]["reason"], error["message"])
    for error in (answer.get("error") or {}).get("errors") or ():
        raise GcpError(error["code"], error["message"])
    return answer


def path_of(cloud: GcpCloud, kind: str, word: str) -> str:
    """The path of what a word names: itself a path, or a name that one thing of the kind has."""
    found = [path for path in cloud.things(kind) if path == word or path.rpartition("/")[2] == word]
    if len(found) != 1:
        raise GcpError("notFound", f"{len(found)} of kind {kind} have the name '{word}'")
    return found[0]


def delete_instance(cloud: GcpCloud, word: str) -> Doc:
    return call(cloud, "DELETE", path_of(cloud, "instance", word))


def add_rule(cloud: GcpCloud, network: str, protocol: str, ports: str, cidr: str) -> Doc:
    """A firewall rule that lets something into a network. `ports`: "22", "80-90", or "" for all."""
    path = path_of(cloud, "network", network)
    rule: Doc = {"IPProtocol": protocol, **({"ports": [ports]} if ports else {})}
    number = len(cloud.things("firewall")) + 1
    body: Doc = {"name": f"{path.rpartition('/')[2][:50]}-drift-{number}", "network": path}
    body |= {"direction": "INGRESS", "allowed": [rule], "sourceRanges": [cidr]}
    return call(cloud, "POST", f"projects/{path.split('/')[1]}/global/firewalls", body=body)


def set_label(cloud: GcpCloud, word: str, key: str, value: str | None) -> Doc:
    """Set a label of an instance; None removes it."""
    path = path_of(cloud, "instance", word)
    doc = call(cloud, "GET", path)
    labels = {name: text for name, text in doc["labels"].items() if name != key}
    if value is not None:
        labels[key] = value
    body = {"labels": labels, "labelFingerprint": doc["labelFingerprint"]}
    return call(cloud, "POST", f"{path}/setLabels", body=body)
