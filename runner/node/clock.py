"""Times that nodes tell, as seconds since the epoch."""

from __future__ import annotations

import re
from datetime import datetime

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(?:Z|([+-]\d\d:\d\d))")


def seconds_of(stamp: str) -> float | None:
    """A time as Docker writes it, with nanoseconds; None for any other text."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(f"{found[1]}{found[3] or '+00:00'}").timestamp()
    except ValueError:
        return None
    return whole + float(found[2] or 0)
