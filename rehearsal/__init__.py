"""Simulated clouds: a state file that behaves like an account, for tests and for rehearsals on a laptop.

`core.Cloud` is one account in one file; `aws/` holds the rules of each AWS call, written from AWS's documents
(README.md names the source of each); `plugin.py` serves them to the Pulumi engine under the real token `aws`,
`boto.py` to boto3. Imports neither components nor catalog: an error in shared data would pass on both sides.
Start reading at `core.py`.
"""
