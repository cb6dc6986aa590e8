"""What tools and the kernel print of a node's health, read: a module for each, all pure.

`sections` splits the output of the script; the others read one tool's. Imports `health.findings` and spec.
"""
