# The buckets: data, which workers only read; outbox, where they create records; central, the controller's own.
locals {
  stores = toset(["data", "outbox", "central"])
}

resource "google_project_service" "this" {
  for_each           = toset(["artifactregistry", "cloudquotas", "compute", "container", "iam", "servicenetworking", "sqladmin", "storage"])
  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}

resource "google_storage_bucket" "store" {
  for_each                    = local.stores
  name                        = "${var.name}-${each.key}"
  project                     = var.project
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = true
  }

  # `plumbline store prune` removes rounds; here only what it cannot see.
  lifecycle_rule {
    action {
      type = "Delete"
    }

    condition {
      days_since_noncurrent_time = 30
    }
  }

  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }

    condition {
      age = 7
    }
  }
}

# Images of worker and controller. A tag is written once, so that a record's image says what ran.
resource "google_artifact_registry_repository" "images" {
  project       = var.project
  location      = var.region
  repository_id = var.name
  format        = "DOCKER"
  depends_on    = [google_project_service.this]

  docker_config {
    immutable_tags = true
  }
}
