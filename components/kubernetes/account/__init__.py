"""What a cluster is asked, and what it said: `facts.py` is frozen, `gather_facts.py` asks."""
