"""The simulated account for tests of this folder."""

from kit.clouds.runpod_lab import lab

__all__ = ["lab"]
