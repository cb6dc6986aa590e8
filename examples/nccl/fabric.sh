# What the job got of its node's fabric, a line each.
env | grep -E '^(NCCL_|FI_|LD_LIBRARY_PATH=)' | sort | sed 's/^/variable /'
cut -d ' ' -f 2 /proc/mounts | grep -E '^(/var/lib/(tcpx|tcpxo|fastrak|nvidia)|/usr/local/(gib|tcpx|nvidia)|/run/tcpx|/dev/aperture)' | sort -u | sed 's/^/mount /'
find /dev '(' -name 'nvidia*' -o -path '/dev/infiniband/*' -o -name gdrdrv -o -name dmabuf_import_helper ')' | sort | sed 's/^/device /'
