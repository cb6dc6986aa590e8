"""All rules, what `orch.yml` says of them, and which of their breaches count.

No verdict reads a clock: the date on which exemptions are judged comes in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from orch.policies.plan_rules import PLAN_CHECKS, TASK_CHECKS, PlanFacts
from orch.policies.resource_rules import CHECKS
from orch.policies.rule import Breach, Level, Resource, Rule, matches
from orch.spec.diagnostics import Diagnostic, RuleText, Severity
from orch.spec.findings import Finding
from orch.spec.grammar.values import Problem, shown
from orch.spec.models.project import Exemption, Policy, ProjectSettings
from orch.spec.suggest import few, hint_for

if TYPE_CHECKING:
    from orch.spec.loader.load import Document
    from orch.spec.models import Task

CODE = "ORCH285"

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        *(rule for rule, _ in CHECKS),
        *(rule for rule, _ in PLAN_CHECKS),
        *(rule for rule, _ in TASK_CHECKS),
    )
}


@dataclass(frozen=True)
class Setting:
    """A rule as it holds in a project."""

    rule: Rule
    level: Level
    parameters: Mapping[str, Any]
    exemptions: tuple[Exemption, ...] = ()

    @property
    def active(self) -> bool:
        return self.level != "disabled" and not self.rule.idle(self.parameters)


@dataclass(frozen=True)
class Violation:
    """A breach that counts. `path`: the property in the file of the fleet; `resources`: folded names.

    `exempt`: who answers for it; then it refuses nothing. `lapsed`: who did, until an exemption was over.
    `advice`: what to do in this case; what the rule says if not given.
    """

    rule: Rule
    level: Level
    text: str
    path: str = ""
    resources: str = ""
    urn: str = ""
    exempt: Exemption | None = None
    lapsed: Exemption | None = None
    advice: str = ""

    @property
    def refuses(self) -> bool:
        return self.level == "mandatory" and self.exempt is None

    @property
    def message(self) -> str:
        return f"{self.resources}: {self.text}" if self.resources else self.text

    @property
    def lapse_words(self) -> str | None:
        lapsed = self.lapsed
        return (
            f"the exemption of {lapsed.owner} is over since {lapsed.expires}" if lapsed is not None else None
        )

    @property
    def hint(self) -> str:
        if self.exempt is not None:
            return ""
        advice = self.advice or self.rule.remediation
        return f"{advice}; or exempt it in `orch.yml`: `policies.{self.rule.name}.exempt`"


@dataclass(frozen=True)
class Subject:
    """Subject of violations: the name of a fleet, volume or task, and its file, relative to the project's
    root.

    `today`: the day on which exemptions are judged, in UTC.
    """

    name: str
    file: str
    today: date


@dataclass(frozen=True)
class Settings:
    """The rules of a project, by name. `packs`: folders of its own policy packs."""

    policies: Mapping[str, Policy] = field(default_factory=dict[str, Policy])
    packs: tuple[str, ...] = ()

    @cached_property
    def all(self) -> Mapping[str, Setting]:
        return {rule.name: _setting(rule, self.policies.get(rule.name)) for rule in RULES.values()}

    def active(self, *, mandatory: bool = False) -> Iterator[Setting]:
        for each in self.all.values():
            if each.active and (each.level == "mandatory" or not mandatory):
                yield each

    @cached_property
    def refuses_by_engine(self) -> bool:
        """Return True if a rule that refuses needs to see what the engine would do."""
        return bool(self.packs) or any(
            each.rule.kind == "resource" or each.rule.operations for each in self.active(mandatory=True)
        )

    def of_resource(self, resource: Resource) -> Iterator[tuple[Setting, Breach]]:
        """Yield the breaches of one resource, each with the setting of its rule."""
        for rule, check in CHECKS:
            setting = self.all[rule.name]
            if setting.active:
                for breach in check(resource, setting.parameters):
                    yield setting, breach

    def of_plan(self, facts: PlanFacts) -> Iterator[tuple[Setting, Breach]]:
        for rule, check in PLAN_CHECKS:
            setting = self.all[rule.name]
            if setting.active:
                for breach in check(facts, setting.parameters):
                    yield setting, breach

    def of_task(self, task: Task) -> Iterator[tuple[Setting, Breach]]:
        for rule, check in TASK_CHECKS:
            setting = self.all[rule.name]
            if setting.active:
                for breach in check(task, setting.parameters):
                    yield setting, breach


DEFAULTS = Settings()


def rule_texts() -> dict[str, RuleText]:
    """The rules as reports describe them."""
    return {
        rule.name: RuleText(rule.description, rule.remediation, rule.severity, rule.url)
        for rule in RULES.values()
    }


def violations(found: Iterable[tuple[Setting, Breach]], subject: Subject) -> tuple[Violation, ...]:
    """The violations in the order of the rules. The same one of several resources comes once."""
    groups: dict[tuple[str, str, str, Exemption | None, Exemption | None], list[Breach]] = {}
    settings: dict[str, Setting] = {}
    for setting, breach in found:
        settings[setting.rule.name] = setting
        exempt, lapsed = exemptions_for(setting, breach, subject)
        groups.setdefault((setting.rule.name, breach.text, breach.path, exempt, lapsed), []).append(breach)
    order = [*RULES, *(name for name in settings if name not in RULES)]
    return tuple(
        Violation(
            settings[name].rule,
            settings[name].level,
            text,
            path,
            folded([each.resource for each in breaches if each.resource]),
            min(each.urn for each in breaches),
            exempt,
            lapsed,
            breaches[0].advice,
        )
        for (name, text, path, exempt, lapsed), breaches in sorted(
            groups.items(), key=lambda each: (order.index(each[0][0]), str(each[0][3]), each[0][1])
        )
    )


def exemptions_for(
    setting: Setting, breach: Breach, subject: Subject
) -> tuple[Exemption | None, Exemption | None]:
    """The exemption that covers a breach on that day; else the one that did until it was over."""
    fitting = [each for each in setting.exemptions if _fits(each, breach, subject)]
    valid = next((each for each in fitting if each.expires >= subject.today), None)
    return valid, max(fitting, key=lambda each: each.expires, default=None) if valid is None else None


def _fits(each: Exemption, breach: Breach, subject: Subject) -> bool:
    """Return True if an exemption is for a breach: all that it names must fit."""
    pairs = (
        (each.resource, (breach.resource, breach.urn)),
        (each.fleet, (subject.name,)),
        (each.path, (subject.file,)),
    )
    return all(
        pattern is None or any(value and matches(value, (pattern,)) for value in values)
        for pattern, values in pairs
    )


def finding_of(violation: Violation) -> Finding:
    """A violation as a finding at its property: an error, a warning, or a note where it is exempt."""
    exempt = violation.exempt
    severity = Severity.ERROR if violation.refuses else Severity.WARNING
    return Finding(
        CODE,
        violation.path,
        f"policy {violation.rule.name}: {violation.message}",
        detail=f"{exempt.owner} answers for it until {exempt.expires}: {exempt.reason}"
        if exempt is not None
        else violation.lapse_words,
        hint=violation.hint or None,
        severity=Severity.NOTE if exempt is not None else severity,
    )


def said_once(
    found: Collection[Violation], findings: Collection[Finding]
) -> tuple[tuple[Violation, ...], tuple[Finding, ...]]:
    """Violations and findings of one plan, without the findings that a violation repeats: it speaks at their
    place, with their advice."""
    by_words = {(each.code, each.summary): each for each in findings}
    repeated = {(each.rule.code, each.text) for each in found} & set(by_words)
    placed: list[Violation] = []
    for each in found:
        words = (each.rule.code, each.text)
        if words in repeated:
            placed.append(replace(each, path=by_words[words].path, advice=by_words[words].hint or ""))
        else:
            placed.append(each)
    return tuple(placed), tuple(each for each in findings if (each.code, each.summary) not in repeated)


def today() -> date:
    """The day on which exemptions are judged, in UTC. For those who call: nothing else here reads a clock."""
    return datetime.now(timezone.utc).date()


def folded(names: Sequence[str]) -> str:
    """`p5-[0-31]`; names that do not fold stand beside it."""
    distinct = sorted(set(names))
    if len(distinct) < 2:
        return "".join(distinct)
    try:
        return str(NodeSet.fromlist(distinct, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return few(distinct)


# orch.yml


def _setting(rule: Rule, policy: Policy | None) -> Setting:
    """A rule with what a policy says of it. What cannot be read is reported by `check`, and left out here."""
    parameters = rule.defaults()
    if policy is None:
        return Setting(rule, rule.level, parameters)
    for name, value in policy.parameters.items():
        parameter = rule.parameter(name)
        if parameter is None or value is None:
            continue
        try:
            parameters[name] = parameter.type.read(value)
        except Problem:
            continue
    return Setting(rule, policy.level or rule.level, parameters, policy.exempt)


def check(document: Document, today: date) -> Iterator[Diagnostic]:
    """Yield errors in the policies of an `orch.yml`, each at its line, and exemptions that are over."""
    settings = document.model
    if not isinstance(settings, ProjectSettings):
        return
    draft = document.draft
    for name, policy in settings.policies.items():
        rule = RULES.get(name)
        if rule is None:
            yield draft.diagnostic(
                "ORCH283",
                ("policies", name),
                f"there is no policy {shown(name)}",
                key=True,
                hint=hint_for(name, RULES) or f"there are {few(RULES, len(RULES))}",
            )
            continue
        yield from _parameters(document, rule, policy)
        for index, each in enumerate(policy.exempt):
            at = ("policies", name, "exempt", index)
            if each.resource is None and each.fleet is None and each.path is None:
                yield draft.diagnostic(
                    "ORCH284",
                    at,
                    "the exemption does not say what it is for",
                    hint="add `resource`, `fleet` or `path`",
                )
            if each.expires < today:
                yield draft.diagnostic(
                    "ORCH284",
                    (*at, "expires"),
                    f"the exemption of {each.owner} from {name} is over since {each.expires}",
                    severity=Severity.WARNING,
                    hint="remove it, or have it renewed",
                )


def require_valid(documents: Iterable[Document]) -> None:
    """Raises InvalidConfiguration where policies of an `orch.yml` have errors."""
    from orch.spec.loader.load import InvalidConfiguration

    found = [
        each
        for document in documents
        for each in check(document, date.max)
        if each.severity is Severity.ERROR
    ]
    if found:
        raise InvalidConfiguration(found)


def _parameters(document: Document, rule: Rule, policy: Policy) -> Iterator[Diagnostic]:
    draft = document.draft
    names = [each.name for each in rule.parameters]
    for name, value in policy.parameters.items():
        at: tuple[str | int, ...] = ("policies", rule.name, "parameters", name)
        if draft.node_at(at) is None:
            at = ("policies", rule.name, name)
        parameter = rule.parameter(name)
        if parameter is None:
            known = f"its parameters are {few(names, len(names))}" if names else "it has no parameters"
            yield draft.diagnostic(
                "ORCH284",
                at,
                f"the policy {rule.name} has no parameter {shown(name)}",
                key=True,
                hint=hint_for(name, names) or known,
            )
            continue
        if value is None:
            continue
        try:
            parameter.type.read(value)
        except Problem as problem:
            yield draft.diagnostic(
                "ORCH284",
                (*at, *problem.at),
                f"`{name}` of the policy {rule.name}: {problem.summary}",
                hint=problem.hint,
            )
    written = any(policy.parameters.get(name) not in (None, [], ()) for name in rule.needs)
    if policy.level != "disabled" and rule.needs and not written:
        yield draft.diagnostic(
            "ORCH284",
            ("policies", rule.name),
            f"the policy {rule.name} does nothing without a parameter",
            key=True,
            severity=Severity.WARNING,
            hint=f"add {' or '.join(f'`{each}`' for each in rule.needs)}",
        )
