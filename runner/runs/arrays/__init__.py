"""Arrays of runs: their submission, whose turn it is, and what drives all members of one."""
