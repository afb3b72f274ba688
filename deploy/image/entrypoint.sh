#!/bin/sh
# What KServe's stock runtime passes begins with the program's name; bare options are kserve-torch's.
# exec leaves the server as the container's first process, so that it gets the signals.
case "${1:-}" in
    torchserve | kserve-torch | python | python3 | sh | bash) exec "$@" ;;
    *) exec kserve-torch "$@" ;;
esac
