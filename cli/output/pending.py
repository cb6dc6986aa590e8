"""What a run waits for before it runs: nodes that boot, images and files on their way. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orch.runner.events import Event, FilesProgress, ImageProgress, Preparing, RunChanged
from orch.runner.launch.environment import fold

Share = tuple[int, int | None]
"""Bytes that have come, and of how many."""


@dataclass
class Pending:
    """What was heard of one run."""

    starting: str = ""
    images: dict[str, Share] = field(default_factory=dict[str, Share])
    files: dict[str, Share] = field(default_factory=dict[str, Share])
    preparing: tuple[str, ...] = ()

    def hear(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            self.starting = event.run if event.status == "provisioning" else ""
        elif isinstance(event, Preparing):
            self.preparing = event.nodes
        elif isinstance(event, ImageProgress | FilesProgress):
            on_the_way = self.images if isinstance(event, ImageProgress) else self.files
            if event.finished:
                on_the_way.pop(event.node, None)
            else:
                on_the_way[event.node] = (event.done_bytes, event.total_bytes)

    def status(self) -> str:
        """In one line; "" when nothing is waited for."""
        unknown = [node for node, (_, total) in self.images.items() if not total]
        known = {node: (done, total) for node, (done, total) in self.images.items() if total}
        coming = {node: share for node, share in known.items() if share[0] < share[1]}
        come = [node for node in known if node not in coming]
        # A few small files are there at once: what takes time then is the container's start.
        sent = {node: (done, total) for node, (done, total) in self.files.items() if total and done < total}
        parts = [
            *([f"first boot of {fold(self.preparing)}"] if self.preparing else []),
            *([f"{fold(unknown)} pulling the image"] if unknown else []),
            *([f"{fold(list(coming))} receiving the image, {_percent(coming)}"] if coming else []),
            *([f"{fold(come)} unpacking the image"] if come else []),
            *([f"{fold(list(sent))} receiving files, {_percent(sent)}"] if sent else []),
        ]
        if self.starting and not parts:
            parts = [f"run {self.starting} is starting"]
        return "; ".join(parts)


def _percent(shares: Mapping[str, tuple[int, int]]) -> str:
    """`45 %`, or from the slowest to the quickest of several: `12 to 45 %`."""
    found = sorted(done * 100 // total for done, total in shares.values())
    return f"{found[0]} %" if found[0] == found[-1] else f"{found[0]} to {found[-1]} %"
