"""Names of the nodes of a run inside its jobs, and logins between its ranks.

A distributed run has keys that live as long as it does. Each rank has an SSH server on `SSH_PORT` where its
image has one, and an `ssh` on PATH that knows the others by address and by name: so an `mpirun` in the
commands works.
"""

from __future__ import annotations

from orch.runner.launch.environment import SSH_PORT, host_names
from orch.runner.launch.run_plan import RunPlan
from orch.runner.ledger.run_folder import RunKeys
from orch.templates import render

# Programs that take a configuration of ssh by `-F`.
_CLIENTS = ("ssh", "scp", "sftp")
# `Include` is of OpenSSH 7.3.
_CONFIG = """\
IgnoreUnknown Include
Host {names}
  Port {port}
  IdentityFile /run/orch/state/ssh/id
  IdentitiesOnly yes
  UserKnownHostsFile /run/orch/ssh/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  ConnectionAttempts 10
  ServerAliveInterval 5
  ServerAliveCountMax 3
  LogLevel ERROR
  Include /run/orch/state/ssh/fault
Match all
  Include ~/.ssh/config
  Include /etc/ssh/ssh_config
"""


def hosts_text(plan: RunPlan) -> str:
    """Lines for /etc/hosts of a run's jobs: internal address, the node's name there, `RUN-RANK`."""
    return "".join(f"{address} {' '.join(names)}\n" for address, names in _hosts(plan))


def login_files(plan: RunPlan, rank: int, keys: RunKeys) -> dict[str, str]:
    """What one rank needs to log in to the others and to be logged in to: file name -> text.

    Host keys are pinned; the run's key is accepted from the run's nodes only.
    """
    hosts = _hosts(plan)
    addresses = [address for address, _ in hosts]
    every = " ".join(" ".join((address, *names)) for address, names in hosts)
    return {
        **{f"bin/{name}": render("ssh-client.sh.j2") for name in _CLIENTS},
        "ssh/config": _CONFIG.format(names=every, port=SSH_PORT),
        "ssh/serve.sh": render("ssh-serve.sh.j2", address=addresses[rank], port=SSH_PORT),
        "ssh/id": keys.client.private,
        "ssh/hostkey": keys.hosts[rank].private,
        "ssh/authorized_keys": f'from="{",".join(addresses)}",no-agent-forwarding,no-X11-forwarding,'
        f"no-port-forwarding,no-pty {keys.client.public}\n",
        "ssh/known_hosts": "".join(
            ",".join(f"[{name}]:{SSH_PORT}" for name in (address, *names)) + f" {host.public}\n"
            for (address, names), host in zip(hosts, keys.hosts, strict=True)
        ),
    }


def _hosts(plan: RunPlan) -> list[tuple[str, tuple[str, ...]]]:
    names = host_names(plan.run, [node.name for node in plan.nodes])
    return [
        (node.internal_ip or "127.0.0.1", tuple(dict.fromkeys((name, f"{plan.run}-{rank}"))))
        for rank, (node, name) in enumerate(zip(plan.nodes, names, strict=True))
    ]
