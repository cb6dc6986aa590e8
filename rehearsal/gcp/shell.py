"""The verbs of `python -m orch.rehearsal` for an account of GCP."""

from __future__ import annotations

import argparse
import json
from typing import Any, ClassVar

from orch.rehearsal.account import SimulationError
from orch.rehearsal.gcp.api.errors import GcpError
from orch.rehearsal.shell import Shell, announced
from orch.rehearsal.store import Doc


class GcpShell(Shell):
    title: ClassVar[str] = "GCP"

    def unknown(self, verb: str) -> SimulationError:
        return SimulationError(f"{verb} is not for an account of GCP, or a word is missing")

    def interrupt(self, args: argparse.Namespace) -> Any:
        instance = self._path_of("instance", args.instance)
        kind = announced(self.cloud, instance, args)
        if kind == "spot":
            return self.cloud.take_back(instance)
        return self._call("DELETE", instance) if kind else None

    def terminate(self, args: argparse.Namespace) -> list[Doc]:
        return [self._call("DELETE", self._path_of("instance", each)) for each in args.instances]

    delete = terminate

    def add_rule(self, args: argparse.Namespace) -> Doc:
        """Let something into a network. `args.port`: "22", "80-90", or "" for all."""
        path = self._path_of("network", args.group)
        rule: Doc = {"IPProtocol": args.protocol, **({"ports": [args.port]} if args.port else {})}
        number = len(self.cloud.things("firewall")) + 1
        body: Doc = {"name": f"{path.rpartition('/')[2][:50]}-drift-{number}", "network": path}
        body |= {"direction": "INGRESS", "allowed": [rule], "sourceRanges": [args.cidr]}
        return self._call("POST", f"projects/{path.split('/')[1]}/global/firewalls", body)

    def tag(self, args: argparse.Namespace) -> Doc:
        key, _, value = args.tag.partition("=")
        return self._set_label(args.resource, key, value)

    def untag(self, args: argparse.Namespace) -> Doc:
        return self._set_label(args.resource, args.key, None)

    def reservation(self, args: argparse.Namespace) -> Any:
        return self.cloud.add_reservation(args.name, args.zone, args.type, args.count, project=args.project)

    def call(self, args: argparse.Namespace) -> Doc:
        if not args.params:
            raise self.unknown(args.verb)
        path, *bodies = args.params
        return self._call(args.action, path, json.loads(bodies[0]) if bodies else None)

    def _call(self, method: str, path: str, body: Doc | None = None) -> Doc:
        """Do one call of the API. Raises GcpError when it is refused, or its operation failed."""
        status, response = self.cloud.request(method, path, None, body, caller="drift")
        if status != 200:
            error = response["error"]
            raise GcpError(error["errors"][0]["reason"], error["message"])
        for error in (response.get("error") or {}).get("errors") or ():
            raise GcpError(error["code"], error["message"])
        return response

    def _path_of(self, kind: str, word: str) -> str:
        """Return the path of a word: itself a path, or a name that one thing of the kind has."""
        paths = [path for path in self.cloud.things(kind) if path == word or path.rpartition("/")[2] == word]
        if len(paths) != 1:
            raise GcpError("notFound", f"{len(paths)} of kind {kind} have the name '{word}'")
        return paths[0]

    def _set_label(self, word: str, key: str, value: str | None) -> Doc:
        """Set a label of an instance; None removes it."""
        path = self._path_of("instance", word)
        doc = self._call("GET", path)
        labels = {name: text for name, text in doc["labels"].items() if name != key}
        if value is not None:
            labels[key] = value
        body = {"labels": labels, "labelFingerprint": doc["labelFingerprint"]}
        return self._call("POST", f"{path}/setLabels", body)


SHELL = GcpShell
