"""The simulated project for tests of this folder."""

from crusoe_lab import lab

__all__ = ["lab"]
