# Runs in the guest on the machine's own files: sets up the rails, runs the command, stores its
# status.
job=/run/railring/job
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. "$job/environment"

finish() {
    echo "$1" >"$job/status"
    sync
    echo o >/proc/sysrq-trigger
    while :; do sleep 1; done
}

# Links that a running system's udev makes; the shell needs the first for what follows.
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr

# What the command says goes to the port that the machine outside reads. A cat in between, because a
# port opens only once and a program may open its /dev/stdout again.
for port in /sys/class/virtio-ports/*; do
    if [ "$(cat "$port/name")" = railring.output ]; then output=/dev/${port##*/}; fi
done
[ -n "${output:-}" ] || { echo "job: no output port" >/dev/console; finish 125; }
exec 3> >(exec cat >"$output") || finish 125
writer=$!

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ulimit -l unlimited
ip link set lo up
hostname "guest$RAILRING_GUEST"
rails=0
for folder in /sys/class/net/*; do
    device=${folder##*/}
    # The last byte of a NIC's address is its number; see the machine's command line.
    case $(cat "$folder/address") in
    52:54:00:*) number=$((16#$(cut -d: -f6 "$folder/address"))) ;;
    *) continue ;;
    esac
    ip link set "$device" name "nic$number"
    ip address add "10.7.$number.$RAILRING_GUEST/24" dev "nic$number"
    ip link set "nic$number" mtu 4200 up
    rdma link add "rxe$number" type rxe netdev "nic$number" && rails=$((rails + 1))
done >/dev/console 2>&1
if [ "$rails" -ne "$RAILRING_GUEST_NICS" ]; then
    echo "job: $rails of $RAILRING_GUEST_NICS software RDMA links" >/dev/console
    finish 125
fi
if [ -n "${RAILRING_GUEST_PEER:-}" ]; then
    # Both guests must be up before either command starts.
    tries=0
    until busybox ping -c 1 -W 1 "10.7.0.$RAILRING_GUEST_PEER" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 240 ]; then echo "job: no peer" >/dev/console; finish 125; fi
        sleep 0.5
    done
fi

cd "$RAILRING_GUEST_FOLDER" || finish 125
cut -d' ' -f1 /proc/uptime >"$job/started"
bash "$job/command" </dev/null >&3 2>&1 3>&-
status=$?
exec 3>&-
# What the command left running may still hold the output: what is said until now is enough.
for _ in $(seq 100); do
    kill -0 "$writer" 2>/dev/null || break
    sleep 0.02
done
finish "$status"
