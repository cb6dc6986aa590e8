"""Lists that a server gives page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

MOST_PAGES = 2000
"""Pages of one list: a million resources of the smallest pages that clouds give on request."""

Page = TypeVar("Page")


class Cursors:
    """The cursors of one list, which must end. `endless` makes the error to raise if they do not."""

    def __init__(self, endless: Callable[[str], Exception]) -> None:
        self._endless, self._seen = endless, set[str]()

    def next(self, cursor: Any) -> str:
        """Return the cursor of the next page, empty at the end of the list. Raise what `endless` makes for a
        cursor that was there before, and beyond MOST_PAGES."""
        text = str(cursor or "")
        if text in self._seen:
            raise self._endless("the list does not end: a page has the cursor of an earlier one")
        if len(self._seen) >= MOST_PAGES:
            raise self._endless(f"the list does not end: it has more than {MOST_PAGES} pages")
        if text:
            self._seen.add(text)
        return text


def follow(
    ask: Callable[[str], Page], cursor_of: Callable[[Page], Any], endless: Callable[[str], Exception]
) -> Iterator[Page]:
    """Yield the pages of a list. `ask` returns the page of a cursor, of "" the first one; `cursor_of` returns
    that of the next page. Raises as `Cursors.next`."""
    cursors, cursor = Cursors(endless), ""
    while True:
        page = ask(cursor)
        yield page
        if not (cursor := cursors.next(cursor_of(page))):
            return
