"""Tasks of Fabric on the nodes of a fleet: `fab kernels --name h100`, in a folder of the fleet's project."""

from fabric import task

from orch.runner.fabfile import fleet


@task
def kernels(c, name):
    """Print the kernel of each node."""
    nodes = fleet(name)
    results = nodes.run("uname -r", hide=True)
    for connection in nodes:
        print(connection.node.name, results[connection].stdout.strip())


@task
def install(c, name, file, to):
    """Copy a file to each node and make it root's."""
    nodes = fleet(name, config=c.config)
    nodes.put(file, "/tmp/orch-install")
    nodes.sudo(f"install -o root -g root -m 644 /tmp/orch-install {to} && rm -f /tmp/orch-install")
