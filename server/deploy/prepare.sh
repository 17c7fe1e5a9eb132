#!/usr/bin/env bash
# Makes what compose.yaml mounts: secrets for their owner alone, directories for data, and .env with who that owner is.
# Running it again changes no secret.
#
#   bash server/deploy/prepare.sh [DIRECTORY OF BUNDLES]      by default those of this user's cache
set -euo pipefail
case ${1-} in
    -h | --help)
        sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit
        ;;
esac
umask 077

bundles=${1:-${STARSD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/starsd-edge}/bundles}
[ -d "$bundles" ] || {
    echo "error: $bundles is no directory: export a bundle first (starsd-edge export smollm2-135m --draft-head shipped), or name the directory" >&2
    exit 1
}
bundles=$(cd "$bundles" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"

# 32 random bytes as text, in the file $1 if it is not there yet.
make_secret() {
    [ -s "$1" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1"
}

mkdir -p secrets data/prometheus data/grafana
for name in hub.token prometheus.token grafana.password; do
    make_secret "secrets/$name"
done
[ -e secrets/keys.toml ] || printf '[prometheus]\ntoken-file = "prometheus.token"\n' >secrets/keys.toml
printf 'STARSD_UID=%s\nSTARSD_GID=%s\nSTARSD_BUNDLES=%s\n' "$(id -u)" "$(id -g)" "$bundles" >.env

echo "Ready: docker compose -f server/deploy/compose.yaml up --build"
echo "  targets need the token in $PWD/secrets/hub.token"
echo "  Grafana (http://127.0.0.1:3000) knows the user admin with the password in $PWD/secrets/grafana.password"
