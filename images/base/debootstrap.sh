#!/bin/sh
# debootstrap.sh RELEASE [SOURCE]...  writes a small Debian root file system as tar to stdout, messages to stderr. Needs root.
#
# It stands in for Debian's slim image where Docker Hub cannot be reached. A SOURCE is "URI RELEASE-OR-POCKET"; the first
# is the mirror to install from, all become the image's apt sources. Without one, debootstrap's own default is used.
set -eu
release=$1
shift
umask 022
PATH=$PATH:/usr/sbin:/sbin
root=$(mktemp -d "${TMPDIR:-/tmp}/orch-base.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT TERM
mirror=
if [ $# -gt 0 ]; then mirror=${1%% *}; fi
chmod 755 "$root"

debootstrap --variant=minbase --include=ca-certificates "$release" "$root" ${mirror:+"$mirror"} >&2

if [ $# -gt 0 ]; then
    for source in "$@"; do echo "deb $source main"; done > "$root/etc/apt/sources.list"
fi
mkdir -p "$root/etc/dpkg/dpkg.cfg.d" "$root/etc/apt/apt.conf.d"
cat > "$root/etc/dpkg/dpkg.cfg.d/orch-base" <<'CFG'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/info/*
force-unsafe-io
CFG
cat > "$root/etc/apt/apt.conf.d/orch-base" <<'CFG'
Acquire::Languages "none";
Acquire::GzipIndexes "true";
CFG
# A package's postinst must not start services while an image is built.
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type d -empty -delete
rm -rf "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/info/* \
    "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/log/*.log
rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
tar -C "$root" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c .
