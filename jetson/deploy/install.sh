#!/usr/bin/env bash
# Installs the target on a Jetson with JetPack 6.2 (or 6.1) or JetPack 7, from the checkout that this file lies in.
#
#   sudo ./install.sh --dry-run      says what it would do, and changes nothing
#   sudo ./install.sh                does it; running it again brings everything up to date
#
# It makes a virtual environment on the system's own Python, which sees JetPack's TensorRT, and the service
# starsd-target under a user of its own. PyTorch is not needed and not installed.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(cd "$HERE/../.." && pwd)
ROOT=${STARSD_ROOT:-} # before every path that is read or written: to look at what is done without a board
PREFIX=/opt/starsd-edge
STATE=/var/lib/starsd-edge
SETTINGS=/etc/starsd-edge
UNITS=/etc/systemd/system
ACCOUNT=starsd
OLDEST_TENSORRT=10.3

dry_run=no
service=yes
close_devices=yes
jetpack=
wheels=
python=
tensorrt=

usage() {
    cat <<'TEXT'
usage: sudo ./install.sh [--dry-run] [--no-service] [--open-devices] [--wheels DIRECTORY] [--jetpack 6|7]

  --dry-run           say what would be done, and change nothing; needs no root
  --no-service        the program only, no service and no user for it
  --open-devices      do not limit the service to the GPU's device nodes
  --wheels DIRECTORY  take wheels from there (starsd-edge's own, too), and nothing from the network
  --jetpack 6|7       take the system for this JetPack, whatever its release says
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Do something, or say that it would be done.
act() {
    if [ "$dry_run" = yes ]; then
        printf 'would run:'
        printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

# Write standard input to the file $1.
write_file() {
    local text
    text=$(cat)
    if [ "$dry_run" = yes ]; then
        say "would write $1:"
        say "$text" | sed 's/^/    /'
    else
        mkdir -p "$(dirname "$1")"
        say "$text" >"$1"
    fi
}

read_options() {
    while [ $# -gt 0 ]; do
        case $1 in
        --dry-run) dry_run=yes ;;
        --no-service) service=no ;;
        --open-devices) close_devices=no ;;
        --wheels)
            wheels=${2-}
            [ -d "$wheels" ] || fail "--wheels takes a directory with wheels, and '$wheels' is none"
            shift
            ;;
        --jetpack)
            jetpack=${2-}
            [ "$jetpack" = 6 ] || [ "$jetpack" = 7 ] || fail "--jetpack is 6 or 7"
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            usage >&2
            fail "no option $1"
            ;;
        esac
        shift
    done
}

# The release of Jetson Linux as MAJOR.MINOR.PATCH (36.4.3): from its file, else from its package.
jetson_linux() {
    local file=$ROOT/etc/nv_tegra_release release
    if [ -r "$file" ]; then
        release=$(sed -nE '1s/^# R([0-9]+) \(release\), REVISION: ([0-9.]+).*/\1.\2/p' "$file")
    else
        # shellcheck disable=SC2016 # dpkg-query's own variable
        release=$(dpkg-query -W -f='${Version}' nvidia-l4t-core 2>/dev/null | sed -E 's/-.*//') || release=
    fi
    say "$release"
}

find_jetpack() {
    local machine release major minor
    machine=$(uname -m)
    [ "$machine" = aarch64 ] || fail "this is no Jetson: its processor is $machine, and a Jetson's is aarch64"
    release=$(jetson_linux)
    if [ -n "$jetpack" ]; then
        say "JetPack $jetpack, because you say so (Jetson Linux ${release:-not found})"
        return
    fi
    [ -n "$release" ] || fail "no Jetson Linux found: neither /etc/nv_tegra_release nor the package nvidia-l4t-core tells a release"
    major=${release%%.*}
    minor=${release#*.}
    minor=${minor%%.*}
    case $major in
    36)
        [ "$minor" -ge 4 ] || fail "Jetson Linux $release is JetPack 6.0, whose TensorRT is older than $OLDEST_TENSORRT: upgrade to JetPack 6.2"
        jetpack=6
        ;;
    38 | 39) jetpack=7 ;;
    *)
        [ "$major" -gt 39 ] || fail "Jetson Linux $release is older than JetPack 6.1, and so is its TensorRT: flash JetPack 6.2 or 7"
        fail "Jetson Linux $release is newer than this script: if it is a JetPack 7, say --jetpack 7"
        ;;
    esac
    say "Jetson Linux $release: JetPack $jetpack"
}

# The system's own Python, because JetPack's TensorRT is made for it and no other.
find_python() {
    local wanted found
    wanted=$([ "$jetpack" = 6 ] && echo 3.10 || echo 3.12)
    python=$ROOT/usr/bin/python3
    [ -x "$python" ] || fail "there is no /usr/bin/python3: sudo apt-get install python3"
    found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$found" = "$wanted" ] || fail "/usr/bin/python3 is Python $found, and JetPack $jetpack comes with $wanted: point /usr/bin/python3 back at python$wanted"
    "$python" -c 'import ensurepip' 2>/dev/null || fail "this Python cannot make virtual environments: sudo apt-get install python3-venv"
    say "Python $found"
}

find_tensorrt() {
    # A directory that happens to be called tensorrt can be imported too, but has no version.
    tensorrt=$("$python" -c 'import tensorrt; print(tensorrt.__version__)' 2>/dev/null) ||
        fail "this Python has no TensorRT: sudo apt-get install nvidia-jetpack"
    [ "$(printf '%s\n' "$OLDEST_TENSORRT" "$tensorrt" | sort -V | head -n 1)" = "$OLDEST_TENSORRT" ] ||
        fail "TensorRT $tensorrt is older than $OLDEST_TENSORRT: upgrade JetPack"
    say "TensorRT $tensorrt"
}

make_environment() {
    local venv=$ROOT$PREFIX/venv pip=(install --quiet --disable-pip-version-check)
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        say "The virtual environment $PREFIX/venv is there."
    else
        act "$python" -m venv --clear --system-site-packages "$venv"
    fi
    if [ -n "$wheels" ]; then
        pip+=(--no-index --find-links "$wheels" "starsd-edge[jetson,serve,json]")
    else
        pip+=("${SOURCE}[jetson,serve,json]")
    fi
    act "$venv/bin/python" -m pip "${pip[@]}" --upgrade --upgrade-strategy only-if-needed \
        --constraint "$HERE/constraints-jetpack$jetpack.txt"
    act mkdir -p "$ROOT/usr/local/bin"
    act ln -sfn "$PREFIX/venv/bin/starsd-edge" "$ROOT/usr/local/bin/starsd-edge"
}

make_account() {
    local group member
    if ! id "$ACCOUNT" >/dev/null 2>&1; then
        act useradd --system --user-group --home-dir "$STATE" --no-create-home --shell /usr/sbin/nologin "$ACCOUNT"
        member=
    else
        member=" $(id -nG "$ACCOUNT") "
    fi
    for group in video render; do
        getent group "$group" >/dev/null || fail "there is no group $group, to which the GPU's device nodes belong on JetPack"
        [[ "$member" == *" $group "* ]] || act usermod --append --groups "$group" "$ACCOUNT"
    done
}

# The device nodes that CUDA opens: those that NVIDIA's container runtime hands to containers, and those known by name.
gpu_devices() {
    local list=$ROOT/etc/nvidia-container-runtime/host-files-for-container.d/devices.csv node
    {
        [ ! -r "$list" ] || sed -nE 's/^ *dev, *(\/dev\/[^ ,]+).*/\1/p' "$list"
        for node in "$ROOT"/dev/{nvmap,nvhost*,nvgpu/*/*,nvidia*,nvsciipc,host1x-fence,dri/renderD*}; do
            say "${node#"$ROOT"}"
        done
    } | sort -u | while read -r node; do
        if [ -e "$ROOT$node" ] && [ ! -d "$ROOT$node" ]; then
            say "$node"
        fi
    done
}

limit_devices() {
    local file=$ROOT$UNITS/starsd-target.service.d/devices.conf devices
    devices=$(gpu_devices)
    if [ "$close_devices" = no ]; then
        act rm -f "$file"
        return
    fi
    [ -n "$devices" ] || fail "none of the GPU's device nodes is there (/dev/nvmap, /dev/nvhost-gpu, ...): boot the board's own system, or say --open-devices"
    {
        say "# Made by install.sh from the nodes of this board. A node that it lacks is closed to CUDA: then remove this file."
        say "[Service]"
        say "DevicePolicy=closed"
        say "$devices" | sed 's/.*/DeviceAllow=& rw/'
    } | write_file "$file"
}

install_service() {
    act install -D -m 644 "$HERE/starsd-target.service" "$ROOT$UNITS/starsd-target.service"
    if [ -e "$ROOT$UNITS/starsd-target.socket" ]; then # of a version that read messages from a FIFO
        act systemctl disable --now starsd-target.socket
        act rm -f "$ROOT$UNITS/starsd-target.socket" "$ROOT/etc/tmpfiles.d/starsd-target.conf"
    fi
    limit_devices
    # Open to look into: the program looks for its configuration there, whoever runs it.
    act install -d -m 755 "$ROOT$SETTINGS"
    act install -d -o "$ACCOUNT" -g "$ACCOUNT" -m 750 "$ROOT$STATE" "$ROOT$STATE/bundles"
    if [ -e "$ROOT$SETTINGS/target.toml" ]; then
        say "$SETTINGS/target.toml is kept as it is."
        grep -q '^\[serve\]' "$ROOT$SETTINGS/target.toml" ||
            say "It has no table [serve], which the service reads now: begin with $HERE/target.toml."
    else
        act install -m 644 "$HERE/target.toml" "$ROOT$SETTINGS/target.toml"
    fi
    act systemctl daemon-reload
    act systemctl try-restart starsd-target.service # one that runs is the old one
}

say_what_is_next() {
    say ""
    if [ "$dry_run" = yes ]; then
        say "Nothing was changed."
        return
    fi
    say "Installed. Next:"
    say "  starsd-edge doctor"
    if [ "$service" = yes ]; then
        say "  copy a bundle to $STATE/bundles, the hub's token to $SETTINGS/hub.token (owner $ACCOUNT, mode 600),"
        say "  write both and the hub's address into $SETTINGS/target.toml, build the engine, and"
        say "  sudo systemctl enable --now starsd-target.service"
    fi
    say "docs/jetson.md has every step."
}

main() {
    read_options "$@"
    find_jetpack
    find_python
    find_tensorrt
    [ "$dry_run" = yes ] || [ "$(id -u)" -eq 0 ] || fail "this needs root: sudo $0 (or look first: $0 --dry-run)"
    make_environment
    if [ "$service" = yes ]; then
        make_account
        install_service
    fi
    say_what_is_next
}

main "$@"
