"""The backend `gcp`: Compute Engine clusters with GPUDirect over TCPX, TCPXO and RoCE.

`candidates.py` says where a fleet may go, `ask.py` asks the project, `plan.py` decides (pure),
`resources.py` registers the plan with Pulumi, `compile.py` puts them together: start there. The clients of
google-cloud-compute and pulumi_gcp are imported when used.
"""
