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
# TorchServe's images evaluate what they are given: commands in one word, or begun by an assignment,
# joined as Compose passes `command: pip install x && torchserve ...`, and with variables in the exec
# form: CMD ["torchserve", ..., "$NAME=$NAME.mar"]. Charts have "a.mar b.mar" as one word of args,
# Dockerfiles "--model-store models".
# What needs no shell gets none.
case "${1:--}" in
    -*) exec kserve-torch "$@" ;;
    serve) # their default: Compose files and images built on them name no command
        config=/home/model-server/config.properties
        [ ! -e "$config" ] || torchserve --start --ts-config "$config"
        exec kserve-torch --model_dir=/mnt/models ;;
    *[\ =]*) eval "$*"; exit ;;
esac
for word; do
    case "$word" in
        *[[:space:]]*\;) ;; # a script for a shell of its own
        "&&" | "||" | "|" | "&" | ">" | ?*\;) eval "$*"; exit ;;
        *\$* | *.mar\ *) [ "$1" != torchserve ] || { eval "$*"; exit; } ;;
        --*) # an option and its value
            case "$1:${word#"${word%%[ =]*}"}" in torchserve:\ *) eval "$*"; exit ;; esac ;;
    esac
done
exec "$@"
