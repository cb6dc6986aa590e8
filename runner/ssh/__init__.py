"""Reaching nodes by SSH: user configuration, host keys, log-ins, connections, commands."""
