# Debian's own kernels in machines that qemu emulates. Sourced by `vm`.

fetch_emulated() { # SERIES: into $work/root
  local series=$1 package version
  require apt-get busybox depmod modprobe xz dpkg-deb
  open_lists "$series"
  package=$(own_apt apt-cache pkgnames "linux-image-$series." | grep -xE "linux-image-[0-9.]+[-+][a-z0-9]+-amd64" | sort -V | tail -n 1)
  download "${package:?Debian has no such kernel}"
  # The kernel, and the modules for networking and for the 9p root file system; not every series has all of them.
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work/root" --wildcards './boot/vmlinuz-*' '*/modules.*' \
    '*/kernel/net/*' '*/kernel/lib/*' '*/kernel/crypto/*' '*/kernel/arch/*' '*/kernel/fs/overlayfs/*' '*/kernel/fs/9p/*' \
    '*/kernel/fs/netfs/*' '*/kernel/fs/fscache/*' '*/kernel/drivers/virtio/*' '*/kernel/drivers/char/*' \
    '*/kernel/drivers/net/*' 2>/dev/null || true
  [ -d "$work/root/lib" ] || ln -s usr/lib "$work/root/lib"
  version=${package#linux-image-}
  mv "$work/root/boot/vmlinuz-$version" "$work/root/vmlinuz"
  depmod -b "$work/root" "$version"
  pack "$work/root" "$version"
}

pack() { # ROOT VERSION: builds the initrd: busybox, the modules for the root file system, and the init that mounts it
  local tree=$1/first name kind module file number
  mkdir -p "$tree"/{bin,proc,sys,dev,modules,files,scratch,job,root}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  for name in virtio_pci virtio_console 9pnet_virtio 9p overlay; do
    modprobe -d "$1" -S "$2" --show-depends "$name" | while read -r kind file _; do
      module=$(basename "${file%.xz}")
      [ "$kind" = insmod ] && ! ls "$tree/modules"/*-"$module" >/dev/null 2>&1 || continue
      number=$(($(ls "$tree/modules" | wc -l) + 100))
      if [ "${file%.xz}" = "$file" ]; then cp "$file" "$tree/modules/$number-$module"; else xz -dc "$file" >"$tree/modules/$number-$module"; fi
    done
  done
  cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc && mount -t sysfs none /sys && mount -t devtmpfs none /dev
for module in /modules/*; do insmod "$module"; done
nine() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2" || poweroff -f; }
nine files /files ro,cache=loose
nine job /job rw
mount -t tmpfs none /scratch && mkdir /scratch/changes /scratch/work
mount -t overlay -o lowerdir=/files,upperdir=/scratch/changes,workdir=/scratch/work none /root || poweroff -f
for place in proc sys dev; do mount --move /$place /root/$place; done
mount -t tmpfs none /root/run
mkdir -p /root/dev/pts /root/dev/shm /root/run/lock /root/run/job /root/lib/modules
mount -t devpts none /root/dev/pts && mount -t tmpfs none /root/dev/shm && mount -t cgroup2 none /root/sys/fs/cgroup
mount --bind /job /root/run/job
mount --bind "/files$(cat /job/kernel)/lib/modules" /root/lib/modules
exec switch_root -c /dev/console /root /bin/bash /run/job/guest
INIT
  chmod +x "$tree/init"
  (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$1/initrd"
  rm -rf "$tree"
}

tsc() { # prints the kernel parameter with the frequency of the processor's time stamp counter, unless the log has lost it
  dmesg 2>/dev/null | sed -n 's/.* tsc: .* \([0-9]\+\)\.\([0-9]\{3\}\) MHz.*/tsc_early_khz=\1\2/p' | tail -n 1
}

start_emulated() { # KERNEL: runs the machine of $job until it ends
  require qemu-system-x86_64
  exec timeout -k 5 "${VM_TIME:-900}" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max,la57=off -smp "${VM_CPUS:-1}" \
    -m "${VM_MEMORY:-1536}" -nodefaults -display none -no-reboot -kernel "$1/vmlinuz" -initrd "$1/initrd" \
    -append "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable $(tsc)" -serial "file:$job/console" \
    -fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=files,mount_tag=files \
    -fsdev local,id=job,path="$job",security_model=none -device virtio-9p-pci,fsdev=job,mount_tag=job \
    -device virtio-serial-pci -chardev "file,id=out,path=$job/out" -device virtserialport,chardev=out,name=out \
    </dev/null 8>&-
}
