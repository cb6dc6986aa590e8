"""Launchers: how the processes of a task are started inside its job containers, one strategy each.

A launcher decides in pure functions and yields shell text; it runs nothing itself. Start at `base.py`.
"""

from orch.runner.launch.launcher import LaunchContext, Launcher, quote_word
from orch.runner.launch.select import launcher_of

__all__ = ["LaunchContext", "Launcher", "launcher_of", "quote_word"]
