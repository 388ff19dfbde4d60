# Packages of Debian's kernels, downloaded with apt without a change to this machine's package lists. Sourced by `vm`.

own_apt() { # TOOL ARG...: with separate package lists, so that those of the system stay unchanged, or need not exist
  local tool=$1
  shift
  "$tool" -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::Lists="$work/lists" \
    -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Architecture=amd64 -o APT::Sandbox::User=root "$@"
}

mirror() { # prints the mirror of Debian's packages
  if [ -z "${VM_MIRROR-}" ] && [ "$(. /etc/os-release && echo "${ID-}")" = debian ]; then
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1
  else
    echo "${VM_MIRROR:-http://deb.debian.org/debian}"
  fi
}

open_lists() { # SERIES: into $work, those of the suite that has this series
  local suite=bookworm mirror
  [ "$1" = 6.1 ] || suite=bookworm-backports
  mkdir -p "$work"/{lists,cache/archives}/partial "$work/root"
  touch "$work/status"
  mirror=$(mirror)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?apt has no source} $suite main" \
    >"$work/sources.list"
  own_apt apt-get update
}

download() { # PACKAGE: into $work
  echo "vm: fetching $1" >&2
  (cd "$work" && own_apt apt-get download "$1")
}
