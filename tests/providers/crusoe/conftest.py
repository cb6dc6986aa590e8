"""The simulated project for tests of this folder."""

from kit.clouds.crusoe_lab import lab

__all__ = ["lab"]
