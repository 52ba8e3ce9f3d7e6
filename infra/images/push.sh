#!/bin/sh
# Build the images of worker and controller of this commit, push them, and print their digests as lines of
# infra/three-clouds/terraform.tfvars:   sh infra/images/push.sh ghcr.io/acme
set -eu
registry=${1:?name the registry, such as ghcr.io/acme}
cd "$(git rev-parse --show-toplevel)"
commit=$(git rev-parse --short=12 HEAD)
if [ -n "$(git status --porcelain)" ]; then
  echo "plumbline: the working tree has changes that are not of $commit (hint: git stash)" >&2
  exit 2
fi
BASE_DIGEST=${BASE_DIGEST:-$(docker buildx imagetools inspect python:3.12-slim-bookworm --format '{{.Manifest.Digest}}')}
export BASE_DIGEST
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
for part in worker controller; do
  image=$registry/plumbline-$part
  # Only what the commit contains, for the processors of the clouds' machines. Provenance would be an index of images.
  git archive --format=tar HEAD | docker buildx build --platform linux/amd64 --provenance=false --push \
    --build-arg BASE_DIGEST --file "infra/$part/Dockerfile" --tag "$image:$commit" --metadata-file "$answer" -
  digest=$(sed -n 's/.*"containerimage.digest": "\(sha256:[0-9a-f]*\)".*/\1/p' "$answer")
  printf '%s_image = "%s@%s"\n' "$part" "$image" "${digest:?docker named no digest}"
done
