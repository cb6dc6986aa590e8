#!/bin/sh
# First process of a node (under docker-init): prepares cgroups, starts sshd, becomes the node's Docker daemon.
# It runs again at every start of the container, so each step must cope with what an earlier life left behind.
set -eu

say() { echo "node-entry: $*" >&2; }

writable_cgroups() {
    # The container has a private cgroup namespace mounted read-only; nested containers need groups below ours.
    mount -o remount,rw /sys/fs/cgroup 2>/dev/null || true
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        # v2: a group that delegates controllers may hold no process itself, so all move into a leaf first.
        mkdir -p /sys/fs/cgroup/init
        while read -r pid; do
            echo "$pid" > /sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
        done < /sys/fs/cgroup/cgroup.procs
        for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
            echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || say "cgroup $controller is not delegated"
        done
    else
        for controller in /sys/fs/cgroup/*; do
            if [ -d "$controller" ] && [ ! -L "$controller" ]; then
                mount -o remount,bind,rw "$controller" 2>/dev/null || say "$controller stays read-only"
            fi
        done
    fi
}

start_sshd() {
    for file in /etc/ssh/ssh_host_ed25519_key /etc/orch/authorized_keys; do
        if [ ! -s "$file" ]; then
            say "$file is missing: copy it into the container before starting it"
            exit 78
        fi
        chown root:root "$file"
        chmod 600 "$file"
    done
    chown root:root /etc/orch
    chmod 755 /etc/orch
    mkdir -p /run/sshd
    # SetEnv: what the node was told about itself is seen by every SSH session.
    /usr/sbin/sshd -f /etc/orch/sshd_config -E /var/log/sshd.log -o PidFile=none \
        ${ORCH_NODE_CPUS:+-o "SetEnv=ORCH_NODE_CPUS=$ORCH_NODE_CPUS"}
}

writable_cgroups
mount --make-rshared / 2>/dev/null || true
mkdir -p /var/lib/orch
chmod 700 /var/lib/orch
start_sshd

# Left by a daemon that was killed; a live process may have the same number now.
rm -f /run/docker.pid /run/docker.sock /run/docker/containerd/containerd.pid /run/docker/containerd/*.sock

# Jobs use the node's own network (`--network host`), so the daemon needs neither bridge nor packet filter rules.
exec dockerd --host=unix:///run/docker.sock --bridge=none --iptables=false --ip6tables=false --ip-forward=false \
    --shutdown-timeout=5 --log-level=warn
