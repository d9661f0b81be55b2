#!/bin/bash
# A real Slurm of one node in a folder of its own, from Debian's packages; needs root. Prints where its slurm.conf is.
#   start_slurm.sh FOLDER        start, wait until the node takes jobs
#   start_slurm.sh FOLDER stop   end its daemons
set -euo pipefail
folder=$(realpath -m "${1:?usage: start_slurm.sh FOLDER [stop]}")

stop() {
    for daemon in slurmd slurmctld munged; do
        [ -s "$folder/$daemon.pid" ] && kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true
    done
}

if [ "${2:-}" = stop ]; then
    stop
    exit 0
fi
for command in munged slurmctld slurmd srun; do
    command -v "$command" >/dev/null || {
        echo "error: $command is missing; apt install munge slurmctld slurmd slurm-client" >&2
        exit 2
    }
done
[ "$(id -u)" = 0 ] || {
    echo "error: Slurm's daemons need root here; run make test-slurm as root" >&2
    exit 2
}

mkdir -p "$folder"/{state,spool}
chmod 755 "$folder"
host=$(hostname -s)
dd if=/dev/urandom of="$folder/munge.key" bs=128 count=1 status=none
chmod 600 "$folder/munge.key"
munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --seed-file="$folder/munge.seed" --log-file="$folder/munged.log" --force >"$folder/munged.out" 2>&1

cat >"$folder/slurm.conf" <<CONF
ClusterName=ci
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${SLURM_TEST_PORT:-16817}
SlurmdPort=$((${SLURM_TEST_PORT:-16817} + 1))
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld -c
slurmd -c
for _ in $(seq 60); do
    if [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; then
        echo "$SLURM_CONF"
        exit 0
    fi
    sleep 1
done
stop
tail -n 5 "$folder"/*.log >&2
echo "error: the node did not become idle in a minute; see the logs in $folder" >&2
exit 1
