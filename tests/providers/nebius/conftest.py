"""The simulated account for tests of this folder."""

from nebius_lab import lab

__all__ = ["lab"]
