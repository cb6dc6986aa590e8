"""The provisioning model of an instance, and its behaviour at maintenance.

Sources: rehearsal/README.md, "GCP: instances".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orch.rehearsal.gcp.api.errors import GcpError, invalid
from orch.rehearsal.gcp.data.tables import Type
from orch.rehearsal.store import Doc

LEAST_LIMIT_S, MOST_LIMIT_S = 30, 120 * 86400
LEAST_RUN_S, MOST_FLEX_RUN_S = 600, 7 * 86400
MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")
RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True)
class Scheduling:
    """The scheduling of an instance. `run_s`: its run duration in seconds. `reservations`: those it names;
    `any`: it may use an open one. `ends`: when it is terminated, in seconds since the epoch."""

    model: str
    run_s: int | None
    reservations: tuple[str, ...]
    any: bool
    doc: Doc
    ends: float | None = None

    @property
    def spot(self) -> bool:
        return self.model == "SPOT"

    @property
    def preemptible(self) -> bool:
        """Whether it counts against the preemptible quotas."""
        return self.model in {"SPOT", "FLEX_START"}


def checked(doc: Doc, kind: Type, prefix: str, now: float | None = None) -> Scheduling:
    """The checked scheduling of an instance or a template. `prefix`: the path of its fields in error
    messages; `now`: when the instance is made."""
    row: Doc = dict(doc.get("scheduling") or {})
    field = f"{prefix}.scheduling"
    model = str(row.get("provisioningModel") or ("SPOT" if row.get("preemptible") else "STANDARD"))
    if model not in MODELS:
        raise invalid(f"{field}.provisioningModel", model, "Unknown provisioning model.")
    restarts = row.get("automaticRestart", model == "STANDARD")
    maintenance = row.get("onHostMaintenance") or ("MIGRATE" if model == "STANDARD" else "TERMINATE")
    if maintenance not in {"MIGRATE", "TERMINATE"}:
        raise invalid(f"{field}.onHostMaintenance", maintenance, "Unknown maintenance behavior.")
    if model == "SPOT" and restarts:
        raise invalid(
            f"{field}.preemptible",
            True,
            "Scheduling must have preemptible be false when AutomaticRestart is true.",
        )
    if model != "STANDARD" and maintenance == "MIGRATE":
        raise invalid(
            f"{field}.onHostMaintenance",
            "MIGRATE",
            f"{model} instances must have onHostMaintenance TERMINATE.",
        )
    if model != "SPOT" and row.get("preemptible"):
        raise invalid(f"{field}.preemptible", True, f"Must be false with provisioning model {model}.")
    if model == "SPOT" and not kind.spot:
        raise invalid(f"{field}.provisioningModel", model, f"Not supported by machine type {kind.name}.")
    if maintenance == "MIGRATE" and not kind.migrates:
        if kind.gpus:
            raise GcpError("badRequest", "Instances with guest accelerators do not support live migration.")
        raise invalid(
            f"{field}.onHostMaintenance", maintenance, f"Not supported by machine type {kind.name}."
        )
    seconds, ends = _limits(row, field, now)
    until = row.get("terminationTime")
    action = row.get("instanceTerminationAction")
    if action and model == "STANDARD" and seconds is None and not until:
        raise invalid(
            f"{field}.instanceTerminationAction",
            action,
            "Can only be set for Spot instances or with a limited run time.",
        )
    consumes, reservations = _reservations(doc, model, prefix)
    if model == "FLEX_START":
        _check_flex(kind, seconds, consumes, restarts=bool(restarts), prefix=prefix)
    full = {
        **row,
        "provisioningModel": model,
        "automaticRestart": bool(restarts),
        "onHostMaintenance": maintenance,
        "preemptible": model == "SPOT",
    }
    may_take_any = consumes == "ANY_RESERVATION" and model == "STANDARD"
    named = reservations if consumes == "SPECIFIC_RESERVATION" else ()
    return Scheduling(model, seconds, named, may_take_any, full, ends)


def _limits(row: Doc, field: str, now: float | None) -> tuple[int | None, float | None]:
    """The checked run duration in seconds, and when the instance is terminated."""
    run = row.get("maxRunDuration")
    seconds = int(run.get("seconds") or 0) if run else None
    if seconds is not None and not LEAST_LIMIT_S <= seconds <= MOST_LIMIT_S:
        raise invalid(f"{field}.maxRunDuration", seconds, "Must be between 30 seconds and 120 days.")
    until = row.get("terminationTime")
    if until and seconds is not None:
        raise invalid(f"{field}.terminationTime", until, "Set either a termination time or a run duration.")
    ends = _moment(f"{field}.terminationTime", until) if until else None
    if ends is not None and now is not None and not LEAST_LIMIT_S <= ends - now <= MOST_LIMIT_S:
        raise invalid(f"{field}.terminationTime", until, "Must be between 30 seconds and 120 days away.")
    return seconds, ends


def _reservations(doc: Doc, model: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """What an instance may consume of reservations, and those that it names. Checked."""
    affinity: Doc = dict(doc.get("reservationAffinity") or {})
    consumes = str(affinity.get("consumeReservationType") or "ANY_RESERVATION")
    reservations = tuple(affinity.get("values") or ()) if affinity.get("key") == RESERVATION_KEY else ()
    if consumes == "SPECIFIC_RESERVATION" and not reservations:
        raise invalid(
            f"{prefix}.reservationAffinity",
            consumes,
            f"Key '{RESERVATION_KEY}' and a reservation are required.",
        )
    if consumes != "SPECIFIC_RESERVATION" and affinity.get("values"):
        raise invalid(
            f"{prefix}.reservationAffinity.values", reservations, "Allowed with SPECIFIC_RESERVATION only."
        )
    if model == "SPOT" and consumes == "SPECIFIC_RESERVATION":
        raise invalid(
            f"{prefix}.reservationAffinity", consumes, "Spot instances cannot consume reservations."
        )
    if model == "RESERVATION_BOUND" and consumes != "SPECIFIC_RESERVATION":
        raise invalid(
            f"{prefix}.reservationAffinity", consumes, f"{model} instances must name a reservation."
        )
    return consumes, reservations


def _moment(field: str, text: object) -> float:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise invalid(field, text, "Must be a time of RFC 3339.") from None


def _check_flex(kind: Type, seconds: int | None, consumes: str, *, restarts: bool, prefix: str) -> None:
    field = f"{prefix}.scheduling"
    if not kind.flex:
        raise invalid(
            f"{field}.provisioningModel", "FLEX_START", f"Not supported by machine type {kind.name}."
        )
    if restarts:
        raise invalid(
            f"{field}.automaticRestart", True, "Flex-start instances cannot be restarted automatically."
        )
    if seconds is not None and not LEAST_RUN_S <= seconds <= MOST_FLEX_RUN_S:
        raise invalid(f"{field}.maxRunDuration", seconds, "Must be between 10 minutes and 7 days.")
    if consumes != "NO_RESERVATION":
        raise invalid(
            f"{prefix}.reservationAffinity", consumes, "Flex-start instances must not consume reservations."
        )
