"""Simulated clouds: a state file that behaves like an account, for tests and for rehearsals on a laptop.

`aws/account.py` is one account in one file; `aws/api/` holds the rules of each AWS call, written from
AWS's documents (README.md names the source of each); `aws/plugin.py` serves them to the Pulumi engine
under the real token `aws`, `aws/client_hook.py` to boto3. `gcp/` is the same for GCP. An account imports
neither components nor catalog: an error in shared data would pass on both sides. `project.py` begins a
rehearsal: start reading there.
"""
