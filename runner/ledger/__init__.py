"""The ledger of runs, and the folder of each run on this machine."""
