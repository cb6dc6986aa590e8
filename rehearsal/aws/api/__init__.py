"""EC2, IAM, STS, SSM and Service Quotas: the rules of each API call. `calls.py` is all of them."""
