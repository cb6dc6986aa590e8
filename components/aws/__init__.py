"""The backend `aws`: EC2 clusters with EFA.

`candidates.py` says where a fleet may go, `account/gather_facts.py` asks the account, `planner.py` decides
(pure), `resources.py` registers the plan with Pulumi, `backend.py` puts them together: start there. boto3
and pulumi_aws are imported when used.
"""
