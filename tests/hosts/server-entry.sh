#!/bin/sh
# First process of a server: writable cgroups for its Docker, sshd, Docker; then it waits, so that either may be stopped alone.
set -eu

mount -o remount,rw /sys/fs/cgroup 2>/dev/null || true
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p /sys/fs/cgroup/init
    while read -r pid; do
        echo "$pid" > /sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
    done < /sys/fs/cgroup/cgroup.procs
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    done
else
    for controller in /sys/fs/cgroup/*; do
        if [ -d "$controller" ] && [ ! -L "$controller" ]; then
            mount -o remount,bind,rw "$controller" 2>/dev/null || true
        fi
    done
fi
mount --make-rshared / 2>/dev/null || true

mkdir -p /run/sshd
/usr/sbin/sshd -E /var/log/sshd.log
if [ "${SERVER_DOCKER:-yes}" = yes ]; then
    sh /usr/local/lib/server/start-docker.sh
fi
exec sleep infinity
