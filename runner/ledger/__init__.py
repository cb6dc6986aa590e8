"""The ledger of runs and what a run keeps on this machine."""
