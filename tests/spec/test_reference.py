"""docs/reference/configuration.md says what the models say, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from orch.spec.models import KINDS
from orch.spec.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_the_one_written_from_the_models() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run `make docs`"


def test_every_link_of_the_page_leads_to_a_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", reference(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_-]", "", heading.lower().replace(" ", "-")) for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", reference()))
    assert links
    assert links <= anchors
    assert len(anchors) == len(headings)


def test_every_property_of_every_document_has_its_line() -> None:
    page = reference()
    for model in KINDS.values():
        for key in model.properties():
            assert f"| `{key}`" in page
