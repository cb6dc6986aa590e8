#!/usr/bin/env bash
# bootstrap.sh [test]: makes a fresh machine able to run orch. With `test`, able to run its tests and checks as well.
#
# Needs git, make and Python >= 3.10. Makes .venv, sees to Docker, and on Debian or Ubuntu installs what is missing (as root or
# through sudo). What is there is left alone, so it may be run at any time and again after it was interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

EXTRA=${1:-}
LOG_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/orch
LOG=$LOG_DIR/bootstrap.log
mkdir -p "$LOG_DIR"
: > "$LOG"

BASE_IMAGES="debian:bookworm-slim orch/base:bookworm"
DOCKER_WAIT_S=60

say() { printf '[set-up] %s\n' "$*"; }

# fail SUMMARY HINT...: what is wrong, then what to do, one hint a line
fail() {
    printf '[set-up] cannot go on: %s\n' "$1" >&2
    shift
    printf '[set-up]   %s\n' "$@" >&2
    exit 1
}

# step TEXT COMMAND...: runs a command into the log, tells how long it took, shows the log's end when it fails
step() {
    local text=$1 started=$SECONDS
    shift
    say "$text ..."
    printf '\n## %s: %s\n' "$text" "$*" >> "$LOG"
    if ! "$@" >> "$LOG" 2>&1 < /dev/null; then
        tail -n 15 "$LOG" >&2
        return 1
    fi
    say "  done in $((SECONDS - started)) s"
}

# --- root and packages ------------------------------------------------------------------------------------------------

SUDO=
if [ "$(id -u)" != 0 ]; then
    SUDO=sudo
    [ -t 0 ] || SUDO="sudo -n"
fi

can_install() {
    command -v apt-get > /dev/null || return 1
    [ -z "$SUDO" ] && return 0
    command -v sudo > /dev/null || return 1
    # Asks for the password here, once, and not in the middle of a step whose output goes to the log.
    $SUDO -v 2> /dev/null || $SUDO true 2> /dev/null
}

apt_update() { $SUDO apt-get update -q; }
apt_add() { $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; }

updated=
# install_packages WHY PACKAGE...: apt, with the lists fetched once
install_packages() {
    local why=$1
    shift
    can_install || fail "$why" "install it with your package manager (Debian and Ubuntu: apt-get install $*), then run this again"
    if [ -z "$updated" ]; then
        step "apt-get update" apt_update || fail "apt-get update failed" "the log is $LOG"
        updated=yes
    fi
    step "apt-get install $*" apt_add "$@" || fail "apt-get install $* failed" "the log is $LOG"
}

# --- Python -----------------------------------------------------------------------------------------------------------

python_is_fit() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' > /dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" > /dev/null && python_is_fit "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python >= 3.10" "install one (Debian and Ubuntu: apt-get install python3 python3-venv), or name it: PYTHON=/path make ..."
}

make_venv() {
    rm -rf .venv
    "$1" -m venv .venv
}

pip_install() {
    # Once more after a failure: an index that hiccups is the commonest reason.
    local try
    for try in 1 2; do
        .venv/bin/python -m pip install --disable-pip-version-check --editable "$1" && return 0
        echo "attempt $try failed"
    done
    return 1
}

# stamp_is_fresh NAME: whether the install that NAME stands for was done from this pyproject.toml
stamp_is_fresh() { [ -f ".venv/.orch-$1" ] && [ "$(cat ".venv/.orch-$1")" = "$wanted" ]; }

python_environment() {
    local wanted target=. name=run
    wanted="$(cksum < pyproject.toml) $(pwd)"
    if [ "$EXTRA" = test ]; then
        target=".[dev]"
        name=dev
    fi
    if [ -x .venv/bin/orch ] && { stamp_is_fresh dev || stamp_is_fresh "$name"; }; then
        say "Python environment .venv: there already"
        return
    fi
    if ! { [ -x .venv/bin/python ] && .venv/bin/python -m pip --version > /dev/null 2>&1; }; then
        local python
        python=$(find_python)
        if ! "$python" -c 'import ensurepip, venv' > /dev/null 2>&1; then
            install_packages "Python's venv module is not installed" python3-venv
        fi
        step "making .venv with $("$python" --version 2>&1)" make_venv "$python" || fail "no .venv could be made" "the log is $LOG"
    fi
    step "installing orch into .venv (editable, ${target}; a minute or two the first time)" pip_install "$target" ||
        fail "pip could not install orch" "the log is $LOG"
    echo "$wanted" > ".venv/.orch-$name"
}

# --- Docker -----------------------------------------------------------------------------------------------------------

docker_answers() { command -v docker > /dev/null && docker version --format '{{.Server.Version}}' > /dev/null 2>&1; }

start_dockerd() {
    if [ -d /run/systemd/system ]; then
        $SUDO systemctl start docker
        return
    fi
    # No systemd (a container, WSL): the daemon is started by hand and outlives this script.
    $SUDO sh -c 'setsid dockerd --group "$1" > /var/log/orch-dockerd.log 2>&1 < /dev/null &' sh "$(id -gn)"
}

wait_for_docker() {
    local waited=0
    until docker_answers; do
        [ "$waited" -lt "$DOCKER_WAIT_S" ] || return 1
        sleep 1
        waited=$((waited + 1))
    done
}

docker_daemon() {
    if docker_answers; then
        say "Docker $(docker version --format '{{.Server.Version}}'): running"
        return
    fi
    if command -v docker > /dev/null && docker version 2>&1 | grep -qi 'permission denied'; then
        fail "Docker runs, but $(id -un) may not talk to it" "sudo usermod -aG docker $(id -un), then log in again"
    fi
    case $(uname -s) in
        Darwin) fail "Docker does not answer" "start Docker Desktop (or colima, OrbStack), then run this again" ;;
        Linux) ;;
        *) fail "Docker does not answer" "start Docker, then run this again" ;;
    esac
    local installed_now=
    if ! command -v dockerd > /dev/null && [ ! -x /usr/sbin/dockerd ]; then
        local packages=(docker.io debootstrap ca-certificates iptables)
        can_install || fail "Docker is not installed" "install Docker (https://docs.docker.com/engine/install), then run this again"
        # Newer releases have the command in a package of its own.
        if apt-cache show docker-cli > /dev/null 2>&1; then packages+=(docker-cli); fi
        install_packages "Docker is not installed" "${packages[@]}"
        installed_now=yes
    fi
    can_install || [ "$(id -u)" = 0 ] || fail "the Docker daemon is not running" "start it: sudo systemctl start docker"
    step "starting the Docker daemon" start_dockerd || fail "the Docker daemon could not be started" "the log is $LOG"
    if [ -n "$installed_now" ] && [ -n "$SUDO" ] && [ -S /var/run/docker.sock ]; then
        say "giving $(id -un) access to the Docker daemon just installed (group docker, and its socket until the next restart)"
        $SUDO usermod -aG docker "$(id -un)"
        $SUDO chgrp "$(id -gn)" /var/run/docker.sock
    fi
    if ! wait_for_docker; then
        tail -n 5 /var/log/orch-dockerd.log >&2 2> /dev/null || true
        fail "the Docker daemon does not answer after $DOCKER_WAIT_S s" \
            "see /var/log/orch-dockerd.log or journalctl -u docker; containers without extra rights cannot run one"
    fi
    say "Docker $(docker version --format '{{.Server.Version}}'): running"
}

base_image() {
    local image
    for image in $BASE_IMAGES; do
        if docker image inspect "$image" > /dev/null 2>&1; then return; fi
    done
    if command -v debootstrap > /dev/null || [ -x /usr/sbin/debootstrap ]; then return; fi
    if step "pulling ${BASE_IMAGES%% *}" timeout 60 docker pull -q "${BASE_IMAGES%% *}" 2> /dev/null; then return; fi
    say "  Docker Hub cannot be reached: a base image will be made with debootstrap"
    install_packages "debootstrap is not installed" debootstrap
}

# --- what only the tests need -----------------------------------------------------------------------------------------

ssh_server() {
    if command -v sshd > /dev/null || [ -x /usr/sbin/sshd ]; then
        say "sshd: there already"
        return
    fi
    install_packages "the tests need sshd" openssh-server openssh-client
    if [ -d /run/systemd/system ]; then
        say "  the tests start sshd themselves; the service that came with it is switched off"
        $SUDO systemctl disable --now ssh.service ssh.socket >> "$LOG" 2>&1 || true
    fi
}

# No program of the package is run as a service: the tests start a server of their own.
postgres_server() {
    if command -v initdb > /dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null; then
        say "PostgreSQL's server: there already"
        return
    fi
    if can_install; then
        $SUDO mkdir -p /etc/postgresql-common/createcluster.d
        echo 'create_main_cluster = false' | $SUDO tee /etc/postgresql-common/createcluster.d/orch-tests.conf >> "$LOG"
    fi
    install_packages "the tests need a PostgreSQL server" postgresql
}

# Gives a process another time than its machine's.
fake_time() {
    if command -v faketime > /dev/null; then
        say "faketime: there already"
        return
    fi
    install_packages "the tests need faketime" faketime
}

# Checks the workflows that `orch ci init` writes. Built for this user, once, from its Go module.
workflow_linter() {
    command -v go > /dev/null || install_packages "the tests build actionlint with Go" golang-go
    step "building actionlint, if it is not there" .venv/bin/python tests/kit/forges/gotools.py actionlint ||
        fail "actionlint could not be built" "the log is $LOG"
}

python_environment
docker_daemon
base_image
if [ "$EXTRA" = test ]; then
    ssh_server
    postgres_server
    fake_time
    workflow_linter
fi
