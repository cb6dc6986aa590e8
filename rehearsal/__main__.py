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
from typing import Any

import yaml
from pydantic import ValidationError

from orch.rehearsal.account import SimulatedAccount, cloud_of
from orch.rehearsal.calls import Refusal
from orch.rehearsal.simulators import simulators
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


def opened(path: str) -> SimulatedAccount:
    """The account of a file, of whichever cloud it is."""
    return simulators()[cloud_of(path)].open(path)


def _do(cloud: SimulatedAccount, args: argparse.Namespace) -> Any:
    if args.verb == "show":
        return cloud.things(args.kind) if args.kind else cloud.everything()
    if args.verb == "calls":
        rows = cloud.calls[-args.last :] if args.last else cloud.calls
        return [f"{c.number} {c.service}:{c.action} {c.region} {c.caller} {c.error or 'ok'}" for c in rows]
    if args.verb == "knobs":
        return cloud.knobs.model_dump(mode="json")
    if args.verb == "set":
        return cloud.turn(**_knobs(cloud, args.knobs)).model_dump(mode="json")
    return simulators()[cloud.name].shell(cloud).do(args)


def _knobs(cloud: SimulatedAccount, words: list[str]) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
