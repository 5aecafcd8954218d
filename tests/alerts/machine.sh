# Stand-ins for the machine's own programs: the tests have no systemd and no mounts in /etc/fstab.
# $SITE has the files that describe the daemon to a service manager.

_ended() { [ ! -e /proc/$1 ] || grep -q '^State:.Z' /proc/$1/status; }
_stop() { kill $(cat $SITE/pid); until _ended $(cat $SITE/pid); do sleep 0.1; done; }
_start() {
  : > $SITE/out
  ( set -a; . $SITE/environment; exec python -m ingester serve $(cat $SITE/arguments) ) \
    >> $SITE/out 2>> $SITE/stderr &
  echo $! > $SITE/pid
  until grep -q ready $SITE/out; do _ended $(cat $SITE/pid) && return 1; sleep 0.1; done
}
systemctl() {
  case "$1 ${2%%@*}" in
    "start ingester") _start ;;
    "restart ingester") _stop && _start ;;
    "reload ingester") kill -HUP $(cat $SITE/pid) ;;
    "status ingester") cat $SITE/ended ;;
    *) echo "no unit ${2}"; return 5 ;;
  esac
}
journalctl() { cat $SITE/stderr; }
mount() { rmdir $1 && mv $1.away $1; }
