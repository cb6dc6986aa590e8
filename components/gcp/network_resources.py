"""What a fleet stands on: its networks, who may reach whom, the bastion. The plan, one to one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

from orch.components.cloud.machines.cloudinit import filled_for, wrapped
from orch.components.cloud.sizing import fingerprint
from orch.components.file_systems import FileSystem
from orch.components.gcp.account.labels import label
from orch.components.gcp.network import filestore_range
from orch.components.gcp.plan import BASTION, NODES, Firewall, GcpPlan, Networks, NetworkStack, Vpc
from orch.components.lifetime import Lifetime
from orch.components.resources import Keys, common_user_data
from orch.spec.models.backends.credentials import GcpServiceAccountCreds
from orch.spec.models.backends.gcp import GcpSettings

Text = pulumi.Output[str]
SHARE = "share"
# Keys of the project and OS Login stay outside.
_OWN_KEYS_ALONE = {"enable-oslogin": "FALSE", "block-project-ssh-keys": "TRUE"}
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def provider_of(
    name: str, settings: GcpSettings, project: str, region: str, *, parent: pulumi.Resource | None
) -> gcp.Provider:
    """The provider of one project and region."""
    creds, arguments = settings.creds, dict[str, Any]()
    if isinstance(creds, GcpServiceAccountCreds):
        text = Path(creds.filename).expanduser().read_text("utf-8") if creds.filename else creds.data
        arguments["credentials"] = pulumi.Output.secret(text)
    opts = pulumi.ResourceOptions(parent=parent)
    return gcp.Provider(name, project=project, region=region, **arguments, opts=opts)


class Marks:
    """What finds a resource again when its creation was cut short: labels, or words of its description."""

    def __init__(self, scope: str) -> None:
        self.stack = f"{pulumi.get_project()}/{pulumi.get_stack()}/{scope}"

    def labels(self, token: str, name: str) -> dict[str, str]:
        return {"orch-stack": label(self.stack), "orch-urn": label(f"{token}::{name}")}

    def words(self, token: str, name: str) -> str:
        """Networks and what belongs to them take no labels."""
        return f"orch:stack={self.stack} orch:urn={token}::{name}"


def ends_at(lifetime: Lifetime) -> dict[str, Any]:
    """The scheduling of an instance that GCP deletes when its fleet's time is over."""
    return {"instance_termination_action": "DELETE", "termination_time": lifetime.stamp}


class NetworkSet:
    """Registers networks. `base` begins the tags of the fleet's instances.

    `ready` must be there before nodes are.
    """

    def __init__(
        self,
        networks: Networks,
        *,
        base: str,
        project: str,
        region: str,
        marks: Marks,
        opts: pulumi.ResourceOptions,
    ) -> None:
        self._marks, self._opts, self._region, self._base = marks, opts, region, base
        host = networks.project or project
        self._vpcs = dict[str, pulumi.Input[str]]()
        self._subnets = dict[tuple[str, str], pulumi.Input[str]]()
        self.ready: list[pulumi.Resource] = []
        for vpc in networks.vpcs:
            if vpc.origin == "made":
                self._made(vpc, project)
            else:
                self._given(vpc, host if vpc.origin == "given" else project)
        for rule in networks.firewalls:
            self._firewall(rule)
        if networks.nat is not None:
            self._nat(networks.nat, networks.first.name)

    def subnet(self, vpc: str, name: str) -> pulumi.Input[str]:
        """The subnet of an interface."""
        return self._subnets[vpc, name]

    def vpc(self, name: str) -> pulumi.Input[str]:
        """A network, as `projects/P/global/networks/NAME`."""
        return self._vpcs[name]

    def _made(self, vpc: Vpc, project: str) -> None:
        profile = f"projects/{project}/global/networkProfiles/{vpc.profile}" if vpc.profile else None
        network = gcp.compute.Network(
            vpc.name,
            name=vpc.name,
            auto_create_subnetworks=False,
            mtu=vpc.mtu,
            network_profile=profile,
            enable_ula_internal_ipv6=True if vpc.dual else None,
            routing_mode="REGIONAL",
            description=self._marks.words("gcp:compute/network:Network", vpc.name),
            # A profile is of one zone: another zone is another network.
            opts=_merged(self._opts, replace_on_changes=["networkProfile"]),
        )
        self._vpcs[vpc.name] = network.id
        self.ready.append(network)
        for each in vpc.subnets:
            dual: dict[str, Any] = {}
            if each.dual:
                dual = {"stack_type": "IPV4_IPV6", "ipv6_access_type": "INTERNAL"}
            subnet = gcp.compute.Subnetwork(
                each.name,
                name=each.name,
                network=network.id,
                region=self._region,
                ip_cidr_range=each.cidr,
                private_ip_google_access=True if vpc.role == "host" else None,
                description=self._marks.words("gcp:compute/subnetwork:Subnetwork", each.name),
                **dual,
                opts=self._opts,
            )
            self._subnets[vpc.name, each.name] = subnet.id
            self.ready.append(subnet)
        if not vpc.subnets:
            # The profile makes the one subnet, with the network.
            subnet_name = f"default-subnet-1-{vpc.name}"
            self._subnets[vpc.name, subnet_name] = network.id.apply(
                lambda _: self._link(project, subnet_name)
            )

    def _given(self, vpc: Vpc, project: str) -> None:
        self._vpcs[vpc.name] = f"projects/{project}/global/networks/{vpc.name}"
        names = [each.name for each in vpc.subnets] or [f"default-subnet-1-{vpc.name}"]
        self._subnets |= {(vpc.name, name): self._link(project, name) for name in names}

    def _link(self, project: str, subnet: str) -> str:
        return f"projects/{project}/regions/{self._region}/subnetworks/{subnet}"

    def _firewall(self, rule: Firewall) -> None:
        tags = {NODES: f"{self._base}-nodes", BASTION: f"{self._base}-bastion"}
        peer_tags = [tags[peer] for peer in rule.peers if peer in tags]
        ranges = [peer for peer in rule.peers if peer not in tags]
        allows: list[Any] = [{"protocol": each} for each in ("tcp", "udp", "icmp")]
        if rule.port is not None:
            allows = [{"protocol": "tcp", "ports": [str(rule.port)]}]
        self.ready.append(
            gcp.compute.Firewall(
                rule.name,
                name=rule.name,
                network=self._vpcs[rule.vpc],
                direction="INGRESS",
                allows=allows,
                source_ranges=ranges or None,
                source_tags=peer_tags or None,
                target_tags=None if rule.target == "all" else [tags[rule.target]],
                description=f"{rule.why}; {self._marks.words('gcp:compute/firewall:Firewall', rule.name)}",
                opts=self._opts,
            )
        )

    def _nat(self, name: str, vpc: str) -> None:
        router = gcp.compute.Router(
            name,
            name=name,
            network=self._vpcs[vpc],
            region=self._region,
            description=self._marks.words("gcp:compute/router:Router", name),
            opts=self._opts,
        )
        nat = gcp.compute.RouterNat(
            name,
            name=name,
            router=router.name,
            region=self._region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            opts=self._opts,
        )
        self.ready.append(nat)


def _merged(opts: pulumi.ResourceOptions, **more: Any) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(**more))


class NetworkResources:
    """All of it for one fleet, as children of `parent`."""

    def __init__(self, plan: GcpPlan, settings: GcpSettings, parent: pulumi.Resource) -> None:
        self.plan = plan
        provider = provider_of(f"{plan.fleet}-gcp", settings, plan.project, plan.region, parent=parent)
        # Names are unique in a project: what replaces something comes after it.
        self.opts = pulumi.ResourceOptions(parent=parent, provider=provider, delete_before_replace=True)
        self.marks = Marks(plan.scope)
        self.keys = Keys(f"{plan.fleet}-keys", opts=pulumi.ResourceOptions(parent=parent))
        self.networks = NetworkSet(
            plan.networks,
            base=plan.base,
            project=plan.project,
            region=plan.region,
            marks=self.marks,
            opts=self.opts,
        )
        self.bastion = self._bastion()
        self._file_systems = {each.name: self._file_system(each) for each in plan.file_systems}
        self._sources = {name: mount_source(each) for name, each in self._file_systems.items()}
        self.ready = [*self.networks.ready, *self._file_systems.values()]

    def _file_system(self, each: FileSystem) -> gcp.filestore.Instance:
        """A Filestore in the zone of the first nodes; all of the network reach it.

        A network of another project is reached through the private services access of its own. Source:
        Filestore documentation, "Networking and IP resource requirements".
        """
        plan, name = self.plan, f"{self.plan.fleet}-{each.name}"
        token, shared = "gcp:filestore/instance:Instance", plan.networks.project not in (None, plan.project)
        network: dict[str, Any] = {
            "network": self.networks.vpc(plan.networks.first.name),
            "modes": ["MODE_IPV4"],
            "connect_mode": "PRIVATE_SERVICE_ACCESS" if shared else "DIRECT_PEERING",
        }
        if plan.networks.first.origin != "given":
            network["reserved_ip_range"] = filestore_range(plan.base, each)
            self._locks(filestore_name(plan.base, each), network["network"], network["reserved_ip_range"])
        return gcp.filestore.Instance(
            name,
            name=filestore_name(plan.base, each),
            location=plan.zone,
            tier="ZONAL",
            file_shares={"name": SHARE, "capacity_gb": each.size},  # type: ignore[arg-type]
            networks=[network],  # type: ignore[list-item]
            labels=self.labels(token, name),
            description=self.marks.words(token, name),
            # What it cannot change holds for as long as it is there: nothing of a fleet replaces it, and the
            # engine refuses to delete it until the user's word has taken its protection away.
            opts=self.after(
                self.networks.ready,
                ignore_changes=["location", "networks", "protocol", "tier", "zone", 'fileShares["name"]'],
                protect=True,
            ),
        )

    def _locks(self, name: str, network: pulumi.Input[str], peer: str) -> None:
        """Lets a Filestore reach the nodes: locks of NFS 3 call back, at ports that the node chooses.

        Source: Filestore documentation, "Supported protocols" (NFS 3 is bidirectional) and "Configuring
        firewall rules".
        """
        description = f"NFS locks of {name}; {self.marks.words('gcp:compute/firewall:Firewall', name)}"
        gcp.compute.Firewall(
            name,
            name=name,
            network=network,
            direction="INGRESS",
            allows=[{"protocol": each} for each in ("tcp", "udp")],  # type: ignore[list-item]
            source_ranges=[peer],
            target_tags=[f"{self.plan.base}-nodes"],
            description=description,
            opts=self.opts,
        )

    def template_name(self, plan: GcpPlan) -> pulumi.Input[str]:
        """The name of the template of a group: it changes with what its nodes mount, and with their key once
        that was rotated."""

        def named(values: Sequence[Any]) -> str:
            key, sources = values
            rotated = key.split()[2:]  # the first pair of a fleet has no comment
            if not sources and not rotated:
                return plan.template
            parts = (plan.template, sorted(sources.items()), *([key] if rotated else []))
            return f"{plan.base}-{fingerprint(*parts)[:8]}"

        return pulumi.Output.all(self.keys.client_public_key, self._sources).apply(named)

    def labels(self, token: str, name: str, **more: str) -> dict[str, str]:
        return {**self.plan.labels, **self.marks.labels(token, name), **more}

    def after(self, resources: Sequence[pulumi.Resource], **more: Any) -> pulumi.ResourceOptions:
        return self.with_options(depends_on=list(resources), **more)

    def with_options(self, **more: Any) -> pulumi.ResourceOptions:
        return _merged(self.opts, **more)

    def _metadata(self, name: str, text: str) -> dict[str, pulumi.Input[str]]:
        """User data with the machine's name and keys."""
        both = pulumi.Output.all(self.keys.host_seed, self.keys.client_public_key)
        return {
            "user-data": pulumi.Output.secret(both.apply(lambda keys: filled_for(name, text, *keys))),
            **_OWN_KEYS_ALONE,
        }

    def common_metadata(self, plan: GcpPlan) -> dict[str, pulumi.Input[str]]:
        """The metadata of all nodes of a group."""
        sources = [self._sources[each.name] for each in self.plan.file_systems]
        user_data = common_user_data(plan, self.plan.file_systems, self.keys, sources, wrapped)
        return {"user-data": user_data, "enable-guest-attributes": "TRUE", **_OWN_KEYS_ALONE}

    def _bastion(self) -> gcp.compute.Instance | None:
        bastion, plan = self.plan.bastion, self.plan
        if bastion is None:
            return None
        name, first = f"{plan.base}-bastion", plan.interfaces[0]
        nic: dict[str, Any] = {"subnetwork": self.networks.subnet(first.vpc, first.subnet)}
        if bastion.public:
            nic["access_configs"] = [{"network_tier": "PREMIUM"}]
        scheduling: Any = ends_at(plan.lifetime) if plan.lifetime else None
        return gcp.compute.Instance(
            f"{plan.fleet}-bastion",
            name=name,
            machine_type=bastion.instance_type,
            zone=plan.zone,
            boot_disk={"initialize_params": {"image": bastion.image}},  # type: ignore[arg-type]
            network_interfaces=[nic],  # type: ignore[list-item]
            scheduling=scheduling,
            tags=[name],
            metadata=self._metadata(f"{plan.fleet}-bastion", plan.bastion_init),
            labels=self.labels("gcp:compute/instance:Instance", f"{plan.fleet}-bastion"),
            # User data is for the first boot; its end changes only where it is stopped.
            opts=self.after(self.networks.ready, ignore_changes=['metadata["user-data"]', "scheduling"]),
        )


def filestore_name(base: str, each: FileSystem) -> str:
    """Its name in the project: 61 of the 63 letters that it may have, for the longest name of a fleet."""
    return f"{base}-fs-{each.name[-4:]}"


def mount_source(each: gcp.filestore.Instance) -> Text:
    """What nodes mount it from, `ADDRESS:/SHARE`."""
    address = each.networks.apply(lambda networks: (networks[0].ip_addresses or [""])[0])
    return address.apply(lambda text: f"{text}:/{SHARE}")


class GcpNetworks(pulumi.ComponentResource):
    """Networks that several fleets share: the whole of a stack of their own."""

    def __init__(self, plan: NetworkStack, project: str, scope: str, settings: GcpSettings) -> None:
        super().__init__("orch:network:Gcp", plan.name)
        provider = provider_of(f"{plan.name}-gcp", settings, project, plan.region, parent=self)
        opts = pulumi.ResourceOptions(parent=self, provider=provider, delete_before_replace=True)
        NetworkSet(
            plan.networks, base=plan.base, project=project, region=plan.region, marks=Marks(scope), opts=opts
        )
        self.register_outputs({"zone": plan.zone, "shape": plan.shape})
