"""EC2, IAM, STS, SSM and Service Quotas: the rules of each API call. `actions.py` says what one is."""
