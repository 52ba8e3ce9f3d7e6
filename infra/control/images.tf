# The images of worker and controller: built here of the repository at its tag, as the machines of the other clouds
# install it, pushed, and then named by their digest.
locals {
  source = abspath("${path.module}/../..")
  images = {
    worker     = { file = "infra/worker/Dockerfile", target = "worker" }
    controller = { file = "infra/controller/Dockerfile", target = "" }
  }
  pushed = { for part, image in docker_registry_image.this : part => "${var.registry}/plumbline-${part}@${image.sha256_digest}" }
}

data "docker_registry_image" "base" {
  name = "python:3.12-slim-bookworm"
}

resource "docker_image" "this" {
  for_each = local.images
  name     = "${var.registry}/plumbline-${each.key}:${var.tag}"
  platform = "linux/amd64"

  build {
    builder             = "default"
    context             = local.source
    additional_contexts = ["source=${var.repository}#${var.tag}"]
    dockerfile          = each.value.file
    target              = each.value.target
    build_args          = { BASE_DIGEST = data.docker_registry_image.base.sha256_digest }
  }
}

resource "docker_registry_image" "this" {
  for_each      = local.images
  name          = docker_image.this[each.key].name
  keep_remotely = true
}
