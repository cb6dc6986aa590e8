"""Streams through the API server: WebSockets, commands by exec, ports by port-forward."""
