# Kernels that run as a program of this machine (user-mode Linux), at its speed except for system calls and page faults. Debian builds
# none with all of nf_tables, so they are built from its kernels' source. Sourced by `vm`.

build_usermode() { # SERIES: takes ten minutes of processor time
  local series=$1 source tool
  for tool in apt-get dpkg-deb xz tar make cc flex bison bc depmod busybox; do command -v $tool >/dev/null || fail "missing: $tool"; done
  open_lists "$series"
  download "linux-source-$series"
  echo "vm: building user-mode Linux $series" >&2
  source=$work/linux-source-$series
  # These headers are a third of the source, and none of them is used.
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -xO --wildcards "*/linux-source-$series.tar.xz" \
    | tar -xJ -C "$work" --exclude='*/drivers/gpu/drm/amd/include/*'
  make_kernel() { make -s -C "$source" ARCH=um KBUILD_BUILD_USER=ferry KBUILD_BUILD_HOST=ferry -j "$(nproc)" "$@" >&2; }
  make_kernel KCONFIG_ALLCONFIG="$here/usermode.config" allnoconfig
  make_kernel linux modules
  make_kernel INSTALL_MOD_PATH="$work/root" modules_install
  cp "$source/linux" "$work/root/linux"
  rm -rf "${cache:?}/uml-$series"
  mv "$work/root" "$cache/uml-$series"
}

first_program() { # KERNEL: prints the init of the machine of $job. Not for busybox, which executes /proc/self/exe: the kernel, at first
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
  mkdir "$job/memory"
  # The guest's memory is a file. /dev/shm of a container is small, and nothing there can be executed.
  TMPDIR=$job/memory exec timeout -k 5 "${VM_TIME:-900}" unshare --mount bash -c 'mount -t tmpfs none "$TMPDIR" && exec "$@"' bash \
    "$1/linux" mem="${VM_MEMORY:-1536}M" root=/dev/root rootfstype=hostfs rootflags=/ ro \
    init="$job/init" loglevel=4 con=null con0=null,fd:1 con1=null,fd:8 uml_dir="$job" umid=machine \
    </dev/null >"$job/console" 2>&1
}
