"""A small kubelet for all nodes of a rehearsed cluster: it runs bound pods as local containers."""
