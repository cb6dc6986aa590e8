"""The verbs of `python -m orch.rehearsal` for an account of AWS."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, ClassVar

from orch.rehearsal.shell import Shell, announced, named
from orch.rehearsal.store import Doc


class AwsShell(Shell):
    title: ClassVar[str] = "AWS"

    def interrupt(self, args: argparse.Namespace) -> Any:
        word = args.instance
        found = [
            each
            for each, doc in self.cloud.instances().items()
            if word == each or {"Key": "Name", "Value": word} in doc["Tags"]
        ]
        instance = named(self.cloud, word, found)
        kind = announced(self.cloud, instance, args)
        if kind == "spot":
            return self.cloud.take_back(instance)
        return self._terminate(instance) if kind else None

    def terminate(self, args: argparse.Namespace) -> list[Doc]:
        return [self._terminate(each) for each in args.instances]

    delete = terminate

    def add_rule(self, args: argparse.Namespace) -> Doc:
        low, _, high = args.port.partition("-")
        entry = {
            "IpProtocol": args.protocol,
            "FromPort": int(low),
            "ToPort": int(high or low),
            "IpRanges": [{"CidrIp": args.cidr}],
        }
        params = {"GroupId": args.group, "IpPermissions": [entry]}
        return self._call("AuthorizeSecurityGroupIngress", params, args.group)

    def tag(self, args: argparse.Namespace) -> Doc:
        key, _, value = args.tag.partition("=")
        params = {"Resources": [args.resource], "Tags": [{"Key": key, "Value": value}]}
        return self._call("CreateTags", params, args.resource)

    def untag(self, args: argparse.Namespace) -> Doc:
        params = {"Resources": [args.resource], "Tags": [{"Key": args.key.partition("=")[0]}]}
        return self._call("DeleteTags", params, args.resource)

    def capacity_block(self, args: argparse.Namespace) -> Any:
        now = time.time()
        return self.cloud.add_capacity_block(
            args.type, args.zone, args.count, start=now + args.start, end=now + args.end
        )

    def call(self, args: argparse.Namespace) -> Doc:
        params = json.loads(args.params[0]) if args.params else {}
        return self.cloud.call(args.action, params, service=args.service, region=args.region, caller="drift")

    def _terminate(self, instance: str) -> Doc:
        return self._call("TerminateInstances", {"InstanceIds": [instance]}, instance)

    def _call(self, action: str, params: Doc, resource: str) -> Doc:
        """Do a call in the region of a resource."""
        with self.cloud.store.transaction():
            doc = self.cloud.store.get(resource)
        region = str((doc or {}).get("_region") or "us-east-1")
        return self.cloud.call(action, params, region=region, caller="drift")


SHELL = AwsShell
