"""The Newcloud account: the calls, the meaning of errors, and the facts that a plan needs."""
