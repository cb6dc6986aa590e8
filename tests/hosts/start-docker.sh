#!/bin/sh
# Starts Docker in the background, with what /etc/docker/daemon.json says, and its containerd where none is there.
own=/usr/local/lib/server socket=/run/docker/containerd/containerd.sock
if ! pgrep -x containerd > /dev/null; then
    rm -f "$socket"
    setsid containerd --config $own/containerd.toml --log-level warn >> /var/log/dockerd.log 2>&1 < /dev/null &
fi
rm -f /run/docker.pid /run/docker.sock
setsid dockerd --host=unix:///run/docker.sock --containerd=$socket --shutdown-timeout=3 --log-level=warn \
    >> /var/log/dockerd.log 2>&1 < /dev/null &
