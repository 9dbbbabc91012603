#!/bin/busybox sh
# The guest's first process: loads the modules, puts a RAM layer over the machine's read-only root,
# and goes there.
b=/bin/busybox
fail() { echo "init: $*" >/dev/console; $b poweroff -f; }

$b mount -t proc proc /proc || fail "no /proc"
$b mount -t sysfs sysfs /sys || fail "no /sys"
$b mount -t devtmpfs devtmpfs /dev || fail "no /dev"
while read -r module; do
    $b insmod "/modules/$module" || echo "init: cannot load $module" >/dev/console
done </modules.list

options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o "$options,ro,cache=loose" machine /lower || fail "no root to share"
$b mount -t tmpfs tmpfs /layer || fail "no RAM layer"
$b mkdir /layer/upper /layer/work
layers=lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work
$b mount -t overlay -o "$layers" overlay /whole || fail "no overlay"
$b mount -t tmpfs tmpfs /whole/run
$b mkdir -p /whole/run/railring/job /whole/run/railring/out
$b mount -t 9p -o "$options,cache=none" job /whole/run/railring/job || fail "no job"
$b mount -t 9p -o "$options,cache=none" out /whole/run/railring/out || fail "no folder for results"
for folder in proc sys dev; do
    $b mount --move "/$folder" "/whole/$folder"
done
exec $b switch_root /whole /bin/bash /run/railring/job/job.sh
