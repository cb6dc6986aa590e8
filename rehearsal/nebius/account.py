"""One simulated Nebius account: a tenant with a project in each region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orch.rehearsal.calls import IncomingCall, Refusal
from orch.rehearsal.machines import SimulatedMachine, device_files
from orch.rehearsal.nebius.api import errors
from orch.rehearsal.nebius.api.compute import public_image
from orch.rehearsal.nebius.api.errors import NebiusError
from orch.rehearsal.nebius.api.instances import remove_gone
from orch.rehearsal.nebius.api.methods import Request, all_methods
from orch.rehearsal.nebius.api.vpc import free_range
from orch.rehearsal.nebius.data.tables import IMAGE_FAMILIES, TENANT, presets, regions
from orch.rehearsal.nodes.account import AccountWithNodes
from orch.rehearsal.scenario import Failure, NodeScenario
from orch.rehearsal.store import Doc

KINDS = ("network", "subnet", "security-group", "security-rule", "gpu-cluster", "disk", "instance")
SERVICE_ACCOUNT = "serviceaccount-e00orchrehearsal"
PUBLIC_KEY = "publickey-e00orchrehearsal"
READS = ("Get", "List", "BatchGet")
_OPEN = "TokenExchangeService"


class NebiusCloud(AccountWithNodes):
    """A Nebius account in a file. Calls bear a token, which was given for a key of its service account."""

    name: ClassVar[str] = "nebius"
    shows_instances: ClassVar[frozenset[str]] = frozenset(
        f"InstanceService.{verb}" for verb in ("Get", "GetByName", "List", "BatchGet")
    )

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        with self.store.transaction():
            if not self.store.meta("tenant"):
                self._found()

    @property
    def tenant(self) -> str:
        return self.identity(TENANT)

    def _found(self) -> None:
        """What each account has at first: projects with their default networks, images, a key."""
        tenant, code = self.tenant, f"e00{self.other}"
        self.store.put_meta("tenant", tenant)
        for region in regions():
            project = f"project-{code}{region}"
            metadata = {"id": project, "parent_id": tenant, "name": f"default-project-{region}"}
            doc = {"metadata": metadata, "spec": {"region": region}, "status": {}}
            self.store.put(project, "project", region, doc, f"{tenant}/{metadata['name']}")
            request = Request(self, "nebius.vpc.v1.SubnetService", "Create", {"parent_id": project})
            network, subnet = f"vpcnetwork-{code}{region}", f"vpcsubnet-{code}{region}"
            ranges = [free_range(request, network, subnet)]
            for kind, each, name, spec, status in (
                ("network", network, "default-network", {}, {"state": "READY"}),
                (
                    "subnet",
                    subnet,
                    "default-subnet",
                    {"network_id": network},
                    {"state": "READY", "ipv4_private_cidrs": ranges},
                ),
            ):
                own = {"id": each, "parent_id": project, "name": name, "resource_version": "1"}
                document = {"metadata": own, "spec": spec, "status": status, "_given": True}
                self.store.put(each, kind, region, document, f"{project}/{name}")
            for family in IMAGE_FAMILIES:
                for release in (1, 2):
                    image_id = f"computeimage-u00{region}-{family}-{release}"
                    image = public_image(region, family, release, image_id)
                    self.store.put(image_id, "image", region, image)
        private, public = _new_key()
        self.store.put_meta("private key", private)
        key = {"account": SERVICE_ACCOUNT, "public": public}
        self.store.put(f"key {PUBLIC_KEY}", "auth-public-key", "", key)

    @property
    def private_key(self) -> str:
        """The key of the account's service account, in PEM."""
        with self.store.transaction():
            return str(self.store.meta("private key"))

    # -- how it refuses -----------------------------------------------------------------------------------

    def denied_call(self, call: IncomingCall) -> NebiusError:
        return errors.permission_denied(str(call.params.get("id") or call.params.get("parent_id") or ""))

    def injected_failure(self, failure: Failure, call: IncomingCall) -> NebiusError:
        return errors.injected(failure.code, failure.message)

    def throttled(self, call: IncomingCall) -> NebiusError:
        return errors.too_many_requests()

    def after_refusal(self, refusal: Refusal) -> None:
        pass

    # -- calls --------------------------------------------------------------------------------------------

    def request(self, service: str, method: str, body: Doc, metadata: Mapping[str, str] | None = None) -> Doc:
        """One call: the answer as JSON. `service`: full name (nebius.compute.v1.InstanceService).

        Raises NebiusError.
        """
        sent = metadata or {}
        short = service.rpartition(".")[2]
        call = IncomingCall(
            service=service.split(".")[1],
            action=f"{short}.{method}",
            region="",
            caller=str(sent.get("user-agent") or ""),
            params=_without_secrets(body),
        )
        key = sent.get("x-idempotency-key")
        token = (
            f"{service}/{method} {key}" if key and not method.startswith(READS) and short != _OPEN else None
        )
        with self.store.transaction():
            remove_gone(Request(self, service, method, body))
        answer = self.perform(call, lambda: self._effect(service, method, body, sent, token))
        if self.answer_is_lost:
            raise errors.unavailable("the connection was closed before the answer")
        return answer

    def _effect(
        self, service: str, method: str, body: Doc, metadata: Mapping[str, str], token: str | None
    ) -> Doc:
        function = all_methods().get((service, method))
        if function is None:
            raise NebiusError("UNIMPLEMENTED", "Unimplemented", f"{service}/{method} is not simulated")
        if not service.endswith(_OPEN):
            self._check_token(metadata.get("authorization", ""))
        if token is not None and (before := self.store.token(token)) is not None:
            return before
        answer = function(Request(self, service, method, body))
        if token is not None:
            self.store.put_token(token, answer)
        return answer

    def _check_token(self, header: str) -> None:
        token = self.store.get(f"token {header.removeprefix('Bearer ')}", "token")
        if token is None or token["ends"] < self.now():
            raise errors.unauthenticated("invalid or expired token")

    # -- behind the back ----------------------------------------------------------------------------------

    def shut_down(self, instance: str) -> None:
        """A machine that is not told to stay off is started again. Source: compute/v1/instance.proto."""
        from orch.rehearsal.nebius.api.instances import restarted

        with self.store.transaction():
            doc = self.store.get(instance, "instance")
            recovers = doc is not None and doc["spec"].get("recovery_policy") != "FAIL"
            if doc is not None and recovers:
                restarted(Request(self, "nebius.compute.v1.InstanceService", "Start", {}), doc)
        if not recovers:
            self._stop(instance)

    def take_back(self, instance: str) -> None:
        """Nebius takes a preemptible machine back: it stops, and its disk stays."""
        self._stop(instance)
        self.follow_behind_the_back()

    def _stop(self, instance: str) -> None:
        from orch.rehearsal.nebius.api.instances import stopped

        with self.store.transaction():
            doc = self.store.get(instance, "instance")
            if doc is not None:
                stopped(Request(self, "nebius.compute.v1.InstanceService", "Stop", {}), doc)

    # -- what a test may ask ------------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        return self.created_resources(KINDS, unless=lambda doc: bool(doc.get("_given")))

    # -- local nodes --------------------------------------------------------------------------------------

    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        from orch.rehearsal.nodes import containers

        containers.follow(self, scenario, self._stop)

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
        if doc is None or doc["status"]["state"] != "RUNNING":
            return None
        user_data = str(doc["spec"].get("cloud_init_user_data") or "")
        if not user_data:
            return None
        resources = doc["spec"]["resources"]
        preset = presets()[resources["platform"], resources["preset"]]
        return SimulatedMachine(
            instance=instance,
            slug=instance.removeprefix("computeinstance-"),
            hostname=str(doc["spec"].get("hostname") or doc["metadata"]["name"]),
            type=preset.type,
            user_data=user_data.encode(),
            placeholders=device_files(preset.gpus, 8 if "gpu_cluster" in doc["spec"] else 0),
        )


def _new_key() -> tuple[str, str]:
    """A pair of RSA keys in PEM: private and public."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def _without_secrets(body: Doc) -> Doc:
    """A request for the log: without user data and tokens."""
    hidden = ("cloud_init_user_data", "subject_token")
    return {
        key: "…" if key in hidden else _without_secrets(value) if isinstance(value, dict) else value
        for key, value in body.items()
    }
