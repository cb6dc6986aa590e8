"""The connector over SSH: user configuration, host keys, log-ins, connections, commands. Start at `pool.py`.

`targets.py` makes nodes of what a fleet's `ssh_config` says. Only the SSH backend and `runner/connect.py`
import any of this.
"""
