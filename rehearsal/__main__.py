"""Look at a simulated account, and change it behind the back of what is recorded.

python -m orch.rehearsal STATE show [KIND]
python -m orch.rehearsal STATE calls [--last N]
python -m orch.rehearsal STATE knobs
python -m orch.rehearsal STATE set KNOB=VALUE...       (VALUE is YAML; KNOB may be
`capacity.p5.48xlarge@us-east-1a`)
python -m orch.rehearsal STATE terminate INSTANCE...   (GCP: also by name)
python -m orch.rehearsal STATE interrupt INSTANCE [--kind spot|maintenance|rebalance] [--in SECONDS]
    (announced to its node at once; then it ends; also by name; Nebius: it stops)
python -m orch.rehearsal STATE add-rule GROUP PROTOCOL PORT CIDR    (GCP: of a network)
python -m orch.rehearsal STATE tag RESOURCE KEY=VALUE  (GCP: a label of an instance)
python -m orch.rehearsal STATE untag RESOURCE KEY
python -m orch.rehearsal STATE capacity-block TYPE ZONE COUNT START END    (AWS; seconds from now)
python -m orch.rehearsal STATE reservation NAME TYPE ZONE COUNT [--project P]    (GCP)
python -m orch.rehearsal STATE call ACTION JSON [--service S] [--region R]
python -m orch.rehearsal STATE call METHOD PATH [JSON]    (GCP)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import yaml
from pydantic import ValidationError

from orch.rehearsal import notices
from orch.rehearsal.account import Refusal, SimulationError, cloud_of
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.crusoe.account import CrusoeCloud
from orch.rehearsal.gcp.account import GcpCloud
from orch.rehearsal.gcp.api.errors import GcpError
from orch.rehearsal.lambda_.account import LambdaCloud
from orch.rehearsal.nebius.account import NebiusCloud
from orch.rehearsal.runpod.account import RunpodCloud
from orch.rehearsal.store import Doc
from orch.spec.errors import OrchError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orch.rehearsal", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "state",
        help="the account's file (.orch/rehearsal/CLOUD.db: aws, gcp, crusoe, lambda, nebius, runpod)",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("show", help="what is there").add_argument("kind", nargs="?")
    verbs.add_parser("calls", help="the log of calls").add_argument("--last", type=int, default=0)
    verbs.add_parser("knobs", help="the knobs in force")
    verbs.add_parser("set", help="turn knobs").add_argument("knobs", nargs="+", metavar="KNOB=VALUE")
    verbs.add_parser("terminate", aliases=["delete"], help="end instances").add_argument(
        "instances", nargs="+"
    )
    interrupt = verbs.add_parser("interrupt", help="announce the end of an instance, and end it")
    interrupt.add_argument("instance")
    interrupt.add_argument("--kind", choices=("spot", "maintenance", "rebalance"), default="spot")
    interrupt.add_argument(
        "--in", type=float, dest="ahead_s", help="seconds until then; else the cloud's own"
    )
    rule = verbs.add_parser("add-rule", help="let something into a security group, or a network")
    for name in ("group", "protocol", "port", "cidr"):
        rule.add_argument(name)
    tag = verbs.add_parser("tag", help="set a tag")
    tag.add_argument("resource")
    tag.add_argument("tag", metavar="KEY=VALUE")
    untag = verbs.add_parser("untag", help="remove a tag")
    untag.add_argument("resource")
    untag.add_argument("key")
    block = verbs.add_parser("capacity-block", help="a Capacity Block that was bought")
    block.add_argument("type")
    block.add_argument("zone")
    for name in ("count", "start", "end"):
        block.add_argument(name, type=int)
    reservation = verbs.add_parser("reservation", help="a reservation that was made")
    for name in ("name", "type", "zone"):
        reservation.add_argument(name)
    reservation.add_argument("count", type=int)
    reservation.add_argument("--project", default="orch-rehearsal")
    call = verbs.add_parser("call", help="any API call")
    call.add_argument("action")
    call.add_argument("params", nargs="*")
    call.add_argument("--service", default="ec2")
    call.add_argument("--region", default="us-east-1")
    return parser


def main(words: list[str] | None = None) -> int:
    """Do one verb; 0, or 1 when it was refused, 2 for a word that cannot be read."""
    args = _parser().parse_args(words)
    try:
        told = _do(opened(args.state), args)
        if told is not None:
            print(json.dumps(told, indent=2, default=str), flush=True)
    except BrokenPipeError:  # as of `| head`, which has read enough
        # Python writes out the rest at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OrchError as error:
        print(error.text(), file=sys.stderr)
        return 1
    except (Refusal, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        print(f"error: a word is not written as it must be: {error}", file=sys.stderr)
        return 2
    return 0


Account = Cloud | CrusoeCloud | GcpCloud | LambdaCloud | NebiusCloud | RunpodCloud


def opened(path: str) -> Account:
    """The account of a file, of whichever cloud it is."""
    clouds = (Cloud, CrusoeCloud, GcpCloud, LambdaCloud, NebiusCloud, RunpodCloud)
    accounts = {each.name: each for each in clouds}
    return accounts[cloud_of(path)](path)


def _do(cloud: Account, args: argparse.Namespace) -> Any:
    if args.verb == "show":
        return cloud.things(args.kind) if args.kind else cloud.everything()
    if args.verb == "calls":
        rows = cloud.calls[-args.last :] if args.last else cloud.calls
        return [f"{c.number} {c.service}:{c.action} {c.region} {c.caller} {c.error or 'ok'}" for c in rows]
    if args.verb == "knobs":
        return cloud.knobs.model_dump(mode="json")
    if args.verb == "set":
        return cloud.turn(**_knobs(cloud, args.knobs)).model_dump(mode="json")
    if isinstance(cloud, CrusoeCloud) and args.verb == "reservation":
        return cloud.add_reservation(args.name, args.type, args.zone, args.count)
    if isinstance(cloud, RunpodCloud | CrusoeCloud | LambdaCloud):
        return _taken_away(cloud, args)
    if args.verb == "interrupt":
        return _interrupt(cloud, args.instance, args.kind, args.ahead_s)
    if isinstance(cloud, NebiusCloud):
        raise SimulationError(
            f"{args.verb} is not for an account of Nebius", hint="`interrupt` stops a machine"
        )
    return _in_gcp(cloud, args) if isinstance(cloud, GcpCloud) else _in_aws(cloud, args)


def _taken_away(cloud: RunpodCloud | CrusoeCloud | LambdaCloud, args: argparse.Namespace) -> None:
    """Machines, by their ids, that RunPod takes away, or whose host Crusoe or Lambda loses: nothing is
    announced."""
    words = {"runpod": ("pod", "RunPod"), "crusoe": ("VM", "Crusoe"), "lambda": ("instance", "Lambda")}
    kind, title = words[cloud.name]
    if args.verb not in {"interrupt", "terminate", "delete"}:
        hint = f"`terminate {kind.upper()}` takes a {kind} away"
        raise SimulationError(f"{args.verb} is not for an account of {title}", hint=hint)
    for instance in [args.instance] if args.verb == "interrupt" else args.instances:
        if instance not in cloud.instances():
            raise SimulationError(f"there is no {kind} {instance}", where=str(cloud.path))
        if isinstance(cloud, RunpodCloud):
            cloud.lose_pod(instance)
        else:
            cloud.lose_host(instance)


def _interrupt(
    cloud: Cloud | GcpCloud | NebiusCloud, word: str, kind: notices.Kind, ahead_s: float | None
) -> Any:
    """Announce the end of an instance to its node, wait for that time, and end it; advice ends nothing.
    Nebius announces nothing."""
    instance = _named(cloud, word)
    if isinstance(cloud, NebiusCloud):
        return cloud.take_back(instance)
    seconds = notices.AHEAD_S[cloud.name].get(kind, 0.0) if ahead_s is None else ahead_s
    notices.announce(cloud, instance, kind, seconds)
    print(f"{word}: {kind} is announced for {seconds:.0f} s from now", file=sys.stderr)
    if kind == "rebalance":
        return None
    time.sleep(seconds)
    if kind == "spot":
        return cloud.take_back(instance)
    if isinstance(cloud, GcpCloud):
        return _delete_instance(cloud, instance)
    params = {"InstanceIds": [instance]}
    return cloud.call("TerminateInstances", params, region=_region(cloud, instance), caller="drift")


def _named(cloud: Cloud | GcpCloud | NebiusCloud, word: str) -> str:
    """The instance of an id, or of a name that one has."""
    if isinstance(cloud, GcpCloud):
        return _path_of(cloud, "instance", word)
    found = [each for each, doc in cloud.instances().items() if word in (each, *_names(cloud, doc))]
    if len(found) != 1:
        raise SimulationError(f"{len(found)} instances have the name {word}", where=str(cloud.path))
    return found[0]


def _names(cloud: Cloud | NebiusCloud, doc: Doc) -> list[str]:
    if isinstance(cloud, NebiusCloud):
        return [doc["metadata"]["name"], doc["spec"].get("hostname", "")]
    return [tag["Value"] for tag in doc["Tags"] if tag["Key"] == "Name"]


def _in_gcp(cloud: GcpCloud, args: argparse.Namespace) -> Any:
    if args.verb in {"terminate", "delete"}:
        return [_delete_instance(cloud, one) for one in args.instances]
    if args.verb == "add-rule":
        return _add_rule(cloud, args.group, args.protocol, args.port, args.cidr)
    if args.verb == "tag":
        key, _, value = args.tag.partition("=")
        return _set_label(cloud, args.resource, key, value)
    if args.verb == "untag":
        return _set_label(cloud, args.resource, args.key, None)
    if args.verb == "reservation":
        return cloud.add_reservation(args.name, args.zone, args.type, args.count, project=args.project)
    if args.verb != "call" or not args.params:
        raise SimulationError(f"{args.verb} is not for an account of GCP, or a word is missing")
    body = json.loads(args.params[1]) if len(args.params) > 1 else None
    return _call_gcp(cloud, args.action, args.params[0], None, body)


def _in_aws(cloud: Cloud, args: argparse.Namespace) -> Any:
    if args.verb in {"terminate", "delete"}:
        return [
            cloud.call(
                "TerminateInstances", {"InstanceIds": [one]}, region=_region(cloud, one), caller="drift"
            )
            for one in args.instances
        ]
    if args.verb == "add-rule":
        low, _, high = args.port.partition("-")
        entry = {
            "IpProtocol": args.protocol,
            "FromPort": int(low),
            "ToPort": int(high or low),
            "IpRanges": [{"CidrIp": args.cidr}],
        }
        params = {"GroupId": args.group, "IpPermissions": [entry]}
        region = _region(cloud, args.group)
        return cloud.call("AuthorizeSecurityGroupIngress", params, region=region, caller="drift")
    if args.verb in {"tag", "untag"}:
        key, _, value = (args.tag if args.verb == "tag" else args.key).partition("=")
        tag = {"Key": key, "Value": value} if args.verb == "tag" else {"Key": key}
        action = "CreateTags" if args.verb == "tag" else "DeleteTags"
        params = {"Resources": [args.resource], "Tags": [tag]}
        return cloud.call(action, params, region=_region(cloud, args.resource), caller="drift")
    if args.verb == "capacity-block":
        now = time.time()
        return cloud.add_capacity_block(
            args.type, args.zone, args.count, start=now + args.start, end=now + args.end
        )
    if args.verb != "call":
        raise SimulationError(f"{args.verb} is not for an account of AWS")
    params = json.loads(args.params[0]) if args.params else {}
    return cloud.call(args.action, params, service=args.service, region=args.region, caller="drift")


def _region(cloud: Cloud, resource: str) -> str:
    with cloud.store.transaction():
        doc = cloud.store.get(resource)
    return str((doc or {}).get("_region") or "us-east-1")


def _knobs(cloud: Account, words: list[str]) -> dict[str, Any]:
    """`capacity.p5.48xlarge@us-east-1a=3` adds to a knob that is a table; `pending_s=2` sets one."""
    changes: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        knob, _, key = name.partition(".")
        value = yaml.safe_load(text)
        if key:
            table = changes.setdefault(knob, dict(getattr(cloud.knobs, knob, {})))
            table[key] = value
        else:
            changes[knob] = value
    return changes


# -- GCP ------------------------------------------------------------------------------------------------


def _call_gcp(
    cloud: GcpCloud, method: str, path: str, params: Doc | None = None, body: Doc | None = None
) -> Doc:
    """One call of the API. Raises GcpError when it is refused, or its operation failed."""
    status, response = cloud.request(method, path, params, body, caller="drift")
    if status != 200:
        error = response["error"]
        raise GcpError(error["errors"][0]["reason"], error["message"])
    for error in (response.get("error") or {}).get("errors") or ():
        raise GcpError(error["code"], error["message"])
    return response


def _path_of(cloud: GcpCloud, kind: str, word: str) -> str:
    """The path of what a word names: itself a path, or a name that one thing of the kind has."""
    paths = [path for path in cloud.things(kind) if path == word or path.rpartition("/")[2] == word]
    if len(paths) != 1:
        raise GcpError("notFound", f"{len(paths)} of kind {kind} have the name '{word}'")
    return paths[0]


def _delete_instance(cloud: GcpCloud, word: str) -> Doc:
    return _call_gcp(cloud, "DELETE", _path_of(cloud, "instance", word))


def _add_rule(cloud: GcpCloud, network: str, protocol: str, ports: str, cidr: str) -> Doc:
    """A firewall rule that lets something into a network. `ports`: "22", "80-90", or "" for all."""
    path = _path_of(cloud, "network", network)
    rule: Doc = {"IPProtocol": protocol, **({"ports": [ports]} if ports else {})}
    number = len(cloud.things("firewall")) + 1
    body: Doc = {"name": f"{path.rpartition('/')[2][:50]}-drift-{number}", "network": path}
    body |= {"direction": "INGRESS", "allowed": [rule], "sourceRanges": [cidr]}
    return _call_gcp(cloud, "POST", f"projects/{path.split('/')[1]}/global/firewalls", body=body)


def _set_label(cloud: GcpCloud, word: str, key: str, value: str | None) -> Doc:
    """Set a label of an instance; None removes it."""
    path = _path_of(cloud, "instance", word)
    doc = _call_gcp(cloud, "GET", path)
    labels = {name: text for name, text in doc["labels"].items() if name != key}
    if value is not None:
        labels[key] = value
    body = {"labels": labels, "labelFingerprint": doc["labelFingerprint"]}
    return _call_gcp(cloud, "POST", f"{path}/setLabels", body=body)


if __name__ == "__main__":
    sys.exit(main())
