#!/bin/sh
# A model that is an image (oci://) is a container that starts after this one and links it here then.
if [ "${MODEL_INIT_MODE:-}" = async ]; then
    tries=0
    until [ -d /mnt/models ] || [ $((tries += 1)) -gt 300 ]; do sleep 0.2; done
fi
# What KServe's stock runtime passes begins with the program's name; bare options are kserve-torch's.
# exec leaves no shell between the server and the signals.
torchserve() {
    exec torchserve "$@"
}
case "${1:--}" in
    -*) exec kserve-torch "$@" ;;
    torchserve | *[\ =]*)
        # TorchServe's images evaluate what they are given, so that variables work in the exec form:
        # CMD ["torchserve", ..., "$NAME=$NAME.mar"], and commands in one word.
        case "$*" in
            *\$* | "$1") eval "$*"; exit ;;
        esac
        ;;
esac
exec "$@"
