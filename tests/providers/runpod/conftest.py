"""The simulated account for tests of this folder."""

from runpod_lab import lab

__all__ = ["lab"]
