"""Work on one node: status, volumes, stage and logs of a job.

`runtime.py` is the interface to whatever starts jobs there; `runtimes/` implements it.
"""
