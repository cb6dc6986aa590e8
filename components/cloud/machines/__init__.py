"""Machines of clouds: their user data, host keys, the way to them, and their record as nodes."""
