"""The backend `gcp`: Compute Engine clusters with GPUDirect over TCPX, TCPXO and RoCE.

`candidates.py` says where a fleet may go, `account/gather_facts.py` asks the project, `planner.py` decides
(pure), `resources.py` registers the plan with Pulumi, `backend.py` puts them together: start there. The
clients of google-cloud-compute and pulumi_gcp are imported when used.
"""
