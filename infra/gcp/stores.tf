# The buckets: data, which workers only read; outbox, where they create records; central, the controller's own.
locals {
  stores = toset(["data", "outbox", "central"])
}

resource "google_project_service" "this" {
  for_each           = toset(["cloudresourcemanager", "compute", "container", "iam", "iamcredentials", "servicenetworking", "sqladmin", "storage"])
  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}

# Google answers 403 for some time after it has enabled a service.
resource "time_sleep" "services" {
  create_duration = "60s"
  triggers        = { for name, service in google_project_service.this : name => service.id }
}

resource "google_storage_bucket" "store" {
  depends_on                  = [time_sleep.services]
  for_each                    = local.stores
  name                        = "${var.name}-${each.key}"
  project                     = var.project
  location                    = var.region
  uniform_bucket_level_access = true
  force_destroy               = !var.deletion_protection
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
