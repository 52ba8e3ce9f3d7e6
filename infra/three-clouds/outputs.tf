output "suite" {
  description = "What `plumbline init --from-outputs` writes into a suite."
  value = {
    store = concat(module.gcp[*].store, module.aws[*].store, module.azure[*].store)[0]
    platforms = merge(
      { for platform in module.aws[*].platform : "aws" => platform },
      { for platform in module.azure[*].platform : "azure" => platform },
      { for platform in module.gcp[*].platform : "gcp" => platform },
    )
  }

  precondition {
    condition     = var.gcp_project != null || (var.cluster != null && var.domain == null)
    error_message = "gcp_project: without it, the controller needs a `cluster` that exists, and a Prefect server (`prefect_api_url`, `prefect_auth`; `domain` is null)."
  }

  precondition {
    condition     = (var.domain == null) == (var.prefect_api_url != null)
    error_message = "domain: makes a Prefect server; null needs `prefect_api_url` and `prefect_auth` of one that exists."
  }

  precondition {
    condition     = var.cluster == null || var.domain == null
    error_message = "cluster: a cluster that exists needs a Prefect server that exists (`domain` is null)."
  }
}

output "address" {
  description = "Point the server's name at this address: an A record of the domain."
  value       = try(module.gcp[0].address, null)
}

output "prefect_api_url" {
  value = local.api_url
}

output "prefect_auth" {
  description = "For PREFECT_API_AUTH_STRING, or PREFECT_API_KEY of Prefect Cloud."
  sensitive   = true
  value       = local.auth
}
