#!/bin/sh
# Starts the job's own Docker daemon and waits until it answers. Says why it cannot. Running it again changes nothing.
set -u
log=/var/log/dockerd.log
if docker version >/dev/null 2>&1; then exit 0; fi
refuse() { printf 'orch: no Docker in this job: %s\n' "$1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || refuse 'its daemon needs root: remove `user` of the task'

# The job's processes move into a group of their own below, so that containers get groups beside them.
mount -o remount,rw /sys/fs/cgroup 2>/dev/null || true
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
  mkdir -p /sys/fs/cgroup/init 2>/dev/null || refuse 'its cgroups cannot be written: the node starts no privileged container'
  while read -r pid; do echo "$pid" > /sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true; done < /sys/fs/cgroup/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
  done
else
  for controller in /sys/fs/cgroup/*; do
    if [ -d "$controller" ] && [ ! -L "$controller" ]; then mount -o remount,bind,rw "$controller" 2>/dev/null || true; fi
  done
fi
mount --make-rshared / 2>/dev/null || true

# The job has the node's own network: a bridge and packet filter rules of this daemon would be the node's.
setsid dockerd --bridge=none --iptables=false --ip6tables=false --ip-forward=false --log-level=warn \
  --exec-root=/run/orch-docker --pidfile=/run/orch-docker.pid > "$log" 2>&1 < /dev/null &
tries=0
until docker version >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 600 ] || ! kill -0 $! 2>/dev/null; then refuse "$(tail -n 1 "$log" 2>/dev/null)"; fi
  sleep 0.1
done
