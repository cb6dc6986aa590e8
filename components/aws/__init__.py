"""The backend `aws`: EC2 clusters with EFA.

`candidates.py` says where a fleet may go, `ask.py` asks the account, `plan.py` decides (pure),
`resources.py` registers the plan with Pulumi, `compile.py` puts them together: start there. boto3 and
pulumi_aws are imported when used.
"""
