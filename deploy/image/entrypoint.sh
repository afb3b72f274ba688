#!/bin/sh
# What KServe's stock runtime passes begins with the program's name; bare options are kserve-torch's.
# exec leaves no shell between the server and the signals.
case "${1:--}" in
    -*) exec kserve-torch "$@" ;;
    *) exec "$@" ;;
esac
