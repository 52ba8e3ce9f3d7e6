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

output "cluster" {
  description = "How to reach the cluster, once it has a node that reaches out."
  value = one([for cluster in google_container_cluster.this : {
    endpoint    = "https://${cluster.endpoint}"
    certificate = base64decode(cluster.master_auth[0].cluster_ca_certificate)
    issuer      = "container.googleapis.com/v1/${cluster.id}"
  }])
  depends_on = [google_container_node_pool.control, google_compute_router_nat.this]
}

output "service_accounts" {
  description = "Google's names of the pods' identities."
  value       = { for name in ["worker", "controller"] : name => google_service_account.this[name].email }
}

output "prefect" {
  description = "What the Prefect server takes from Google."
  sensitive   = true
  value = one([for index, database in google_sql_database_instance.prefect : {
    address_name = google_compute_global_address.prefect[index].name
    certificate  = google_compute_managed_ssl_certificate.prefect[index].name
    database_url = "postgresql+asyncpg://${google_sql_user.prefect[index].name}:${random_password.database[index].result}@${database.private_ip_address}:5432/${google_sql_database.prefect[index].name}?ssl=require"
  }])
}

output "address" {
  description = "Address to which the server's name has to point."
  value       = one(google_compute_global_address.prefect[*].address)
}

output "controller_address" {
  description = "Address by which the controller is known outside."
  value       = one(google_compute_address.out[*].address)
}
