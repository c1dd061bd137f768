# shellcheck shell=bash
# What a host needs to run the guest, for the rigs that use it.
#
# Needs: skip STATUS REASON, which ends the rig. Sets BOWLINE_LAB_CACHE unless it is set.

no_packages=77
guest_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/guest

# Installs an emulator and builds the guest, or says why that is not possible.
prepare_guest() {
    [[ $(uname -sm) == 'Linux x86_64' ]] || skip 1 "the guest is built for Linux on x86_64"
    ((EUID == 0)) || skip 1 "it makes a network namespace of its own, which needs root"
    command -v apt-get > /dev/null ||
        skip 1 "the guest is made of Debian packages, and apt-get is missing"
    [[ -c /dev/net/tun ]] || skip 1 "/dev/net/tun is missing"
    install_tools
    export BOWLINE_LAB_CACHE=${BOWLINE_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bowline-lab/rxe}
    build_guest
}

# Debian packages that the host itself needs; those of the guest are only unpacked.
install_tools() {
    local missing=()
    command -v qemu-system-x86_64 > /dev/null || missing+=(qemu-system-x86)
    command -v modprobe > /dev/null || missing+=(kmod)
    command -v ip > /dev/null || missing+=(iproute2)
    command -v gcc > /dev/null || missing+=(gcc libc6-dev)
    ((${#missing[@]} == 0)) && return
    echo "installing ${missing[*]}"
    apt-get update -qq || true # an old list may still do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "${missing[@]}" > /dev/null ||
        skip "$no_packages" "apt-get cannot install ${missing[*]}"
}

build_guest() {
    local status=0
    "$guest_home/build" "$BOWLINE_LAB_CACHE" || status=$?
    ((status != no_packages)) || skip "$no_packages" "no packages to build the guest from"
    return "$status"
}
