#!/usr/bin/env bash
# Builds the image; see --help.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
    cat <<'TEXT'
Usage: ./build_image.sh [-g] [-d] [-t repository/image:tag]

  -g, --gpu        the GPU variant (default tag ends in -gpu, as KServe expects)
  -d, --dev        the development image, from Dockerfile.dev (default tag ends in -dev)
  -t, --tag TAG    name and tag to use as given, instead of kserve-torch:<version>
  -h, --help       this text

Environment:
  TORCH_INDEX      package index with torch's wheels without CUDA, for a small CPU image
  PYTHON_IMAGE     base image instead of python:3.12-slim
TEXT
}

fail() {
    echo "build_image.sh: $1 (--help shows the options)" >&2
    exit 2
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' kserve_torch/__init__.py)
file=Dockerfile
variant=cpu
tag=

while [ $# -gt 0 ]; do
    case "$1" in
        -g | --gpu) variant=gpu ;;
        -d | --dev) file=Dockerfile.dev ;;
        -t | --tag)
            [ $# -ge 2 ] || fail "$1 needs a name such as repository/image:tag"
            tag=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown option $1" ;;
    esac
    shift
done

suffix=
[ "$variant" = cpu ] || suffix=-gpu
[ "$file" = Dockerfile ] || suffix=$suffix-dev
tag=${tag:-kserve-torch:$version$suffix}

arguments=(--file "$file" --tag "$tag")
if [ "$file" = Dockerfile ]; then
    arguments+=(--build-arg "VARIANT=$variant" --build-arg "VERSION=$version")
    arguments+=(--build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
fi
[ -z "${PYTHON_IMAGE:-}" ] || arguments+=(--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE")
if [ -n "${TORCH_INDEX:-}" ] && [ "$variant" = cpu ]; then
    arguments+=(--build-arg "TORCH_INDEX=$TORCH_INDEX")
fi

DOCKER_BUILDKIT=1 docker build "${arguments[@]}" .
echo "Built $tag"
