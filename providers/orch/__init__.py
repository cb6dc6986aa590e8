"""The provider `orch`: one module per resource, `plugin.py` serves them, `handler.py` is what a resource must
be.

Registered values are inputs, observed ones the output `observed`; drift is their difference. Every create is
idempotent
by name, so that one repeated after a kill makes nothing twice.
"""
