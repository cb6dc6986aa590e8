"""Tasks of Fabric on the nodes of a fleet: `fab kernels --name h100`, in a folder of the fleet's project."""

from shlex import quote

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
    nodes.put(file, "to-install")  # in the home of the user: others may write in /tmp
    nodes.sudo(f"install -o root -g root -m 644 to-install {quote(to)}")
    nodes.run("rm to-install")
