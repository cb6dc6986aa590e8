"""What else a process that forks commands has at hand, run by it once all is imported: warm.py."""

import functools
import importlib
import threading


def read_services() -> None:
    """Have AWS's own descriptions of its services at hand, which each client's session reads anew."""
    from boto3.session import Session
    from botocore.loaders import JSONFileLoader

    read = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda self, path: read(path)  # type: ignore[method-assign]
    session = Session("nobody", "nothing", region_name="us-east-1")
    for service in ("ec2", "service-quotas", "ssm", "sts", "iam"):
        session.client(service)


# Types of a cloud are read when they are first named.
aws = importlib.import_module("pulumi_aws")
assert aws.ec2.Instance
assert aws.iam.Role
assert importlib.import_module("pulumi_gcp").compute.Network
importlib.import_module("orch.catalog.load").catalog()
importlib.import_module("orch.catalog.load").gpu_models()
read_services()
assert threading.active_count() == 1
