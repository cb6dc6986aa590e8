"""Rules of each API call of EC2, IAM, STS, SSM and Service Quotas. `actions.py` defines an action."""
