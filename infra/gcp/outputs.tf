output "platform" {
  description = "This platform, as a suite names it."
  value = {
    work_pool   = "gcp-gpu"
    data        = "gs://${google_storage_bucket.store["data"].name}/${var.prefix}"
    outbox      = "gs://${google_storage_bucket.store["outbox"].name}/${var.prefix}"
    accelerator = var.accelerator
  }
}

output "store" {
  description = "The controller's own store."
  value       = "gs://${google_storage_bucket.store["central"].name}/${var.prefix}"
}

output "registry" {
  description = "Where images are pushed to."
  value       = google_artifact_registry_repository.images.registry_uri
}

output "cluster" {
  description = "How to reach the cluster."
  value = {
    endpoint    = "https://${google_container_cluster.this.endpoint}"
    certificate = base64decode(google_container_cluster.this.master_auth[0].cluster_ca_certificate)
    issuer      = "container.googleapis.com/v1/${google_container_cluster.this.id}"
  }
}

output "service_accounts" {
  description = "Google's names of the pods' identities."
  value       = { for name in ["worker", "controller"] : name => google_service_account.this[name].email }
}

output "prefect" {
  description = "What the Prefect server takes from Google."
  sensitive   = true
  value = {
    address_name = google_compute_global_address.prefect.name
    certificate  = google_compute_managed_ssl_certificate.prefect.name
    database_url = "postgresql+asyncpg://${google_sql_user.prefect.name}:${random_password.database.result}@${google_sql_database_instance.prefect.private_ip_address}:5432/${google_sql_database.prefect.name}?ssl=require"
  }
}

output "address" {
  description = "Address to which the server's name has to point."
  value       = google_compute_global_address.prefect.address
}

output "controller_address" {
  description = "Address by which the controller is known outside."
  value       = google_compute_address.out.address
}
