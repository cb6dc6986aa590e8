"""The rules over resources as a policy pack of Pulumi: `pulumi preview --policy-pack policies`.

Levels, parameters and exemptions are those of the `orch.yml` of the folder where `pulumi` runs, so that both
show the same violations. It speaks the engine's protocol with what Pulumi's SDK has of it, and prints
nothing but its port on stdout, where the engine reads it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import analyzer_pb2 as proto
from pulumi.runtime.proto import analyzer_pb2_grpc, plugin_pb2

from orch import __version__
from orch.policies.rule import Level, Resource, Rule
from orch.policies.settings import Setting, Settings, Subject, Violation, today, violations
from orch.spec.document.defaults import nearest_project_file
from orch.spec.errors import OrchError
from orch.spec.loader.load import load_paths
from orch.spec.models import Fleet, Volume
from orch.spec.models.project import Policy, ProjectSettings

NAME = "orch"

_LEVELS: Mapping[str, Any] = {
    "advisory": proto.ADVISORY,
    "mandatory": proto.MANDATORY,
    "disabled": proto.DISABLED,
}
_SEVERITIES: Mapping[str, Any] = {
    "low": proto.POLICY_SEVERITY_LOW,
    "medium": proto.POLICY_SEVERITY_MEDIUM,
    "high": proto.POLICY_SEVERITY_HIGH,
    "critical": proto.POLICY_SEVERITY_CRITICAL,
}
_SKIPPED = {".git", ".orch", ".venv", "node_modules", "__pycache__"}


class Analyzer(analyzer_pb2_grpc.AnalyzerServicer):
    """Judges each resource as the engine registers it. `folder`: where the program of the project runs."""

    def __init__(self, folder: Path) -> None:
        self._settings, self._root = settings_at(folder)
        self._subject = Subject(os.environ.get("PULUMI_STACK", ""), "", today())
        self._ended = threading.Event()

    def wait(self) -> None:
        """Return when the engine says so, or is gone."""
        parent = os.getppid()
        while not self._ended.wait(1.0):
            if os.getppid() != parent:
                return

    def Handshake(self, request: Any, context: Any) -> Any:
        return proto.AnalyzerHandshakeResponse()

    def ConfigureStack(self, request: Any, context: Any) -> Any:
        file = file_of(self._root, request.stack)
        self._subject = replace(self._subject, name=request.stack.removeprefix("volume."), file=file)
        return proto.AnalyzerStackConfigureResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=__version__)

    def GetAnalyzerInfo(self, request: Any, context: Any) -> Any:
        info = proto.AnalyzerInfo(name=NAME, displayName="orch", version=__version__, supportsConfig=True)
        for setting in self._settings.all.values():
            if setting.rule.kind == "resource":
                info.policies.append(_info(setting))
        return info

    def Configure(self, request: Any, context: Any) -> Any:
        """Take levels and parameters of `--policy-pack-config`, which default to those of `orch.yml`."""
        names = {value: name for name, value in _LEVELS.items()}
        policies = dict(self._settings.policies)
        for name, config in request.policyConfig.items():
            own = policies.get(name, Policy())
            given = {
                key: _plain(value) for key, value in json_format.MessageToDict(config.properties).items()
            }
            level = cast("Level", names.get(config.enforcementLevel, "mandatory"))
            policies[name] = Policy(level=level, parameters={**own.parameters, **given}, exempt=own.exempt)
        self._settings = Settings(policies)
        return empty_pb2.Empty()

    def Analyze(self, request: Any, context: Any) -> Any:
        inputs = json_format.MessageToDict(request.properties)
        provider = (
            json_format.MessageToDict(request.provider.properties) if request.HasField("provider") else {}
        )
        resource = Resource(request.type, request.name, request.urn, inputs, provider)
        found = violations(self._settings.of_resource(resource), self._subject)
        return proto.AnalyzeResponse(diagnostics=[_diagnostic(each) for each in found])

    def AnalyzeStack(self, request: Any, context: Any) -> Any:
        return proto.AnalyzeResponse()

    def Remediate(self, request: Any, context: Any) -> Any:
        return proto.RemediateResponse()

    def Cancel(self, request: Any, context: Any) -> Any:
        self._ended.set()
        return empty_pb2.Empty()


def _info(setting: Setting) -> Any:
    rule = setting.rule
    info = proto.PolicyInfo(
        name=rule.name,
        displayName=rule.name,
        description=rule.description,
        enforcementLevel=_LEVELS[setting.level],
        severity=_SEVERITIES[rule.severity],
        policy_type=proto.POLICY_TYPE_RESOURCE,
        remediation_steps=rule.remediation,
        url=rule.url,
    )
    if rule.framework:
        info.framework.name = rule.framework
    for parameter in rule.parameters:
        schema = {**parameter.type.schema, "description": parameter.description}
        info.configSchema.properties.update({parameter.name: schema})
    return info


def _diagnostic(violation: Violation) -> Any:
    rule: Rule = violation.rule
    exempt, words = violation.exempt, violation.message
    if exempt is not None:
        words = f"{words} (exempt until {exempt.expires}: {exempt.owner}, {exempt.reason})"
    elif violation.lapse_words:
        words = f"{words} ({violation.lapse_words})"
    return proto.AnalyzeDiagnostic(
        policyName=rule.name,
        policyPackName=NAME,
        policyPackVersion=__version__,
        description=rule.description,
        message=f"{words}\n{rule.remediation}",
        enforcementLevel=proto.ADVISORY if exempt is not None else _LEVELS[violation.level],
        severity=_SEVERITIES[rule.severity],
        urn=violation.urn,
    )


def _plain(value: object) -> object:
    """A JSON value as `orch.yml` would have it: a whole number without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def settings_at(folder: Path) -> tuple[Settings, Path]:
    """Return the policies of the nearest `orch.yml`, and its folder. Raises InvalidConfiguration."""
    from orch.policies.settings import require_valid

    file = nearest_project_file(str(folder))
    if file is None:
        return Settings(), folder
    documents = load_paths([file]).require().of(ProjectSettings)
    require_valid(document for document, _ in documents)
    return (Settings(documents[0][1].policies) if documents else Settings()), Path(file).parent


def file_of(root: Path, stack: str) -> str:
    """The file of a stack's fleet or volume, from the project's root on; "" where none describes it."""
    kind, name = (Volume, stack.removeprefix("volume.")) if stack.startswith("volume.") else (Fleet, stack)
    for path in _yaml_files(root):
        loaded = load_paths([path])
        if any(model.name == name for _, model in loaded.of(kind)):
            return os.path.relpath(path, root)
    return ""


def _yaml_files(root: Path) -> Iterator[Path]:
    for path in sorted([*root.rglob("*.yml"), *root.rglob("*.yaml")]):
        if not _SKIPPED & set(path.relative_to(root).parts) and path.is_file():
            yield path


def main() -> None:
    """Serve until the engine ends. A project whose policies are wrong is told on stderr, which ends it."""
    try:
        analyzer = Analyzer(Path.cwd())
    except OrchError as error:
        sys.stderr.write(f"{error.text()}\n")
        sys.exit(int(error.exit_code))
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    analyzer_pb2_grpc.add_AnalyzerServicer_to_server(analyzer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    analyzer.wait()
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
