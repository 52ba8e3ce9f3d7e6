output "suite" {
  description = "What `plumbline init --from-outputs` writes into a suite."
  value = {
    store = module.gcp.store
    platforms = {
      aws   = module.aws.platform
      azure = module.azure.platform
      gcp   = module.gcp.platform
    }
  }
}

output "address" {
  description = "Point the server's name at this address: an A record of the domain."
  value       = module.gcp.address
}

output "prefect_api_url" {
  value = local.worker.prefect_api_url
}

output "prefect_auth" {
  description = "For PREFECT_API_AUTH_STRING."
  sensitive   = true
  value       = local.auth
}
