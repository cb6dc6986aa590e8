#!/bin/sh
# Ansible calls it with --list or --host NAME, in the folder it lies in: the project's.
cd "$(dirname "$0")" && exec orch inventory "$@"
