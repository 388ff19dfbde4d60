# Kernels that run as a program of this machine (user-mode Linux), at its speed except for system calls and page faults. Debian builds
# none with all of nf_tables, so they are built from its kernels' source. Sourced by `vm`.

fetch_usermode() { # SERIES: builds it into $work/root, which takes ten minutes of processor time
  local series=$1 source=$work/linux-source-$1 lacks
  require apt-get dpkg-deb xz tar make cc flex bison bc depmod
  open_lists "$series"
  download "linux-source-$series"
  echo "vm: building user-mode Linux $series" >&2
  # These headers are a third of the source, and none of them is used.
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -xO --wildcards "*/linux-source-$series.tar.xz" \
    | tar -xJ -C "$work" --exclude='*/drivers/gpu/drm/amd/include/*'
  make_kernel() { make -s -C "$source" ARCH=um KBUILD_BUILD_USER=ferry KBUILD_BUILD_HOST=ferry -j "$(nproc)" "$@" >&2; }
  make_kernel KCONFIG_ALLCONFIG="$here/usermode.config" allnoconfig
  # An option whose own needs are missing is left out in silence.
  lacks=$(grep '^CONFIG' "$here/usermode.config" | grep -vxFf "$source/.config" || true)
  [ -z "$lacks" ] || fail "the configuration lacks" $lacks
  make_kernel linux modules
  make_kernel INSTALL_MOD_PATH="$work/root" modules_install
  cp "$source/linux" "$work/root/linux"
}

first_program() { # KERNEL: prints the init of the machine of $job. Bash runs it, since busybox executes /proc/self/exe: that is the
  # kernel until the guest's /proc is mounted
  cat <<INIT
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc && mount -t sysfs none /sys && mount -t tmpfs none /mnt && mkdir /mnt/changes /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/changes,workdir=/mnt/work none /mnt/root || busybox poweroff -f
cd /mnt/root
for place in proc sys; do mount --move /\$place \$place; done
mount -t devtmpfs none dev && mount -t tmpfs none run
mkdir -p dev/pts dev/shm run/lock run/job lib/modules
mount -t devpts none dev/pts && mount -t tmpfs none dev/shm && mount -t cgroup2 none sys/fs/cgroup
mount -t hostfs -o "$job" none run/job
mount --bind "$1/lib/modules" lib/modules
pivot_root . mnt
cd / && exec /bin/bash -c 'umount -l /mnt; exec /bin/bash /run/job/guest <dev/console >dev/console 2>&1'
INIT
}

start_usermode() { # KERNEL: runs the machine of $job until it ends
  first_program "$1" >"$job/init"
  chmod +x "$job/init"
  local memory=${VM_MEMORY:-1536}
  require unshare busybox
  mkdir "$job/memory"
  # The guest's memory is a file. /dev/shm of a container is small, and nothing there can be executed.
  TMPDIR=$job/memory exec timeout -k 5 "${VM_TIME:-900}" unshare --mount bash -c \
    'mount -t tmpfs -o "size=$1m,mode=700" none "$TMPDIR" && shift && exec "$@"' bash "$((memory + 64))" \
    "$1/linux" mem="${memory}M" root=/dev/root rootfstype=hostfs rootflags=/ ro \
    init="$job/init" loglevel=4 con=null con0=null,fd:1 con1=null,fd:8 uml_dir="$job" umid=machine \
    </dev/null >"$job/console" 2>&1
}
