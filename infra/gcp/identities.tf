# Pods are these service accounts by their Kubernetes names: no key exists anywhere.
locals {
  workload_pool = "${var.project}.svc.id.goog"
  roles = {
    writer     = jsondecode(file("${path.module}/worker-outbox-role.json"))
    replacer   = jsondecode(file("${path.module}/worker-checkpoint-role.json"))
    controller = jsondecode(file("${path.module}/controller-role.json"))
  }
  checkpoints = jsondecode(templatefile("${path.module}/checkpoints-condition.json", {
    outbox_bucket = google_storage_bucket.store["outbox"].name
    prefix        = var.prefix
  }))
}

resource "google_project_iam_custom_role" "this" {
  depends_on  = [time_sleep.services]
  for_each    = local.roles
  project     = var.project
  role_id     = replace("${var.name}_${each.key}", "-", "_")
  title       = each.value["title"]
  description = each.value["description"]
  permissions = each.value["includedPermissions"]
}

resource "google_service_account" "this" {
  depends_on = [time_sleep.services]
  for_each   = toset(["worker", "controller", "nodes"])
  project    = var.project
  account_id = "${var.name}-${each.key}"
}

# Google knows the pool of identities once a cluster has it.
resource "google_service_account_iam_member" "pod" {
  depends_on         = [google_container_cluster.this]
  for_each           = toset(["worker", "controller"])
  service_account_id = google_service_account.this[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${local.workload_pool}[${var.namespace}/plumbline-${each.key}]"
}

resource "google_storage_bucket_iam_member" "worker_reads_data" {
  bucket = google_storage_bucket.store["data"].name
  role   = "roles/storage.objectViewer"
  member = google_service_account.this["worker"].member
}

resource "google_storage_bucket_iam_member" "worker_writes_outbox" {
  bucket = google_storage_bucket.store["outbox"].name
  role   = google_project_iam_custom_role.this["writer"].id
  member = google_service_account.this["worker"].member
}

resource "google_storage_bucket_iam_member" "worker_replaces_checkpoints" {
  bucket = google_storage_bucket.store["outbox"].name
  role   = google_project_iam_custom_role.this["replacer"].id
  member = google_service_account.this["worker"].member

  condition {
    title       = local.checkpoints["title"]
    description = local.checkpoints["description"]
    expression  = local.checkpoints["expression"]
  }
}

resource "google_storage_bucket_iam_member" "controller" {
  for_each = local.stores
  bucket   = google_storage_bucket.store[each.key].name
  role     = google_project_iam_custom_role.this["controller"].id
  member   = google_service_account.this["controller"].member
}

# What Google asks of a node's own account; pods have accounts of their own.
resource "google_project_iam_member" "nodes" {
  depends_on = [time_sleep.services]
  project    = var.project
  role       = "roles/container.defaultNodeServiceAccount"
  member     = google_service_account.this["nodes"].member
}
