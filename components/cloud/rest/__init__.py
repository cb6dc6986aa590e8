"""Clouds that are asked by REST, and whose resources a provider of ours serves: what they do alike.

`client.py` asks; `handler.py` makes and finds resources by their names. The second imports Pulumi's provider
interface: a cloud's `plugin.py` alone may import it.
"""
