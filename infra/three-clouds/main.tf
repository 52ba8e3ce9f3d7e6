# Plumbline on AWS, Azure and Google Cloud; Prefect and the controller run on Google Cloud. An account, or the domain, that is
# null is left out.
locals {
  namespace     = "plumbline"
  controller    = "system:serviceaccount:${local.namespace}:plumbline-controller"
  gcp_region    = join("-", slice(split("-", concat(var.gcp_zones, ["us-central1-a"])[0]), 0, 2))
  no_cluster    = { endpoint = "https://none", certificate = "", issuer = "none" } # outputs.tf refuses it
  cluster       = coalesce(var.cluster, try(module.gcp[0].cluster, null), local.no_cluster)
  api_url       = var.domain == null ? coalesce(var.prefect_api_url, "none") : "https://${var.domain}/api"
  auth          = var.domain == null ? var.prefect_auth : "plumbline:${random_password.prefect.result}"
  auth_variable = startswith(local.api_url, "https://api.prefect.cloud/") ? "PREFECT_API_KEY" : "PREFECT_API_AUTH_STRING"
  secret        = join("\n", ["${local.auth_variable}=${local.auth == null ? "" : local.auth}", "REGISTRY_LOGIN=${var.registry_login == null ? "" : var.registry_login}", ""])
  worker = {
    image           = var.worker_image
    prefect_api_url = local.api_url
    idle_minutes    = 30
    max_minutes     = 360
  }
}

# Without its account, a provider is asked for nothing, and asks for no login.
provider "aws" {
  region                      = coalesce(var.aws_region, "us-east-1")
  access_key                  = var.aws_region == null ? "none" : null
  secret_key                  = var.aws_region == null ? "none" : null
  skip_credentials_validation = var.aws_region == null
  skip_requesting_account_id  = var.aws_region == null
}

provider "azurerm" {
  subscription_id     = coalesce(var.azure_subscription, "00000000-0000-0000-0000-000000000000")
  storage_use_azuread = true

  # A new subscription knows no service until its provider is registered.
  resource_provider_registrations = "none"
  resource_providers_to_register  = var.azure_subscription == null ? [] : ["Microsoft.Compute", "Microsoft.Insights", "Microsoft.KeyVault", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage"]

  features {}
}

provider "google" {
  project               = var.gcp_project
  region                = local.gcp_region
  access_token          = var.gcp_project == null ? "none" : null
  billing_project       = var.gcp_project
  user_project_override = true
}

# The cluster's tokens live for an hour, which an apply may exceed: each request asks for its own.
provider "kubernetes" {
  host                   = local.cluster.endpoint
  cluster_ca_certificate = local.cluster.certificate

  exec {
    api_version = "client.authentication.k8s.io/v1"
    command     = var.cluster_login[0]
    args        = slice(var.cluster_login, 1, length(var.cluster_login))
  }
}

provider "helm" {
  kubernetes = {
    host                   = local.cluster.endpoint
    cluster_ca_certificate = local.cluster.certificate
    exec = {
      api_version = "client.authentication.k8s.io/v1"
      command     = var.cluster_login[0]
      args        = slice(var.cluster_login, 1, length(var.cluster_login))
    }
  }
}

resource "random_password" "prefect" {
  length  = 32
  special = false
}

module "gcp" {
  count               = var.gcp_project == null ? 0 : 1
  source              = "../gcp"
  name                = var.name
  project             = var.gcp_project
  region              = local.gcp_region
  gpu_zones           = var.gcp_zones
  namespace           = local.namespace
  domain              = var.domain
  cluster             = var.cluster
  off_hour            = var.off_hour
  machine_type        = var.gcp.machine_type
  accelerator_type    = var.gcp.accelerator_type
  driver              = var.gcp.driver
  accelerator         = var.gcp.accelerator
  max_machines        = var.gcp.max_machines
  spot                = var.gcp.spot
  compact             = var.gcp.compact
  reservation         = var.gcp.reservation
  deletion_protection = var.deletion_protection
}

module "aws" {
  count              = var.aws_region == null ? 0 : 1
  source             = "../aws"
  name               = var.name
  issuer             = local.cluster.issuer
  controller_subject = local.controller
  worker             = merge(local.worker, { work_pool = "aws-gpu" })
  secret             = local.secret
  off_hour           = var.off_hour
  machine_type       = var.aws.machine_type
  image              = var.aws.image
  accelerator        = var.aws.accelerator
  max_machines       = var.aws.max_machines
  spot               = var.aws.spot
  reservation        = var.aws.reservation

  deletion_protection = var.deletion_protection
}

module "azure" {
  count              = var.azure_subscription == null ? 0 : 1
  source             = "../azure"
  name               = var.name
  region             = var.azure_region
  issuer             = local.cluster.issuer
  controller_subject = local.controller
  worker             = merge(local.worker, { work_pool = "azure-gpu" })
  secret             = local.secret
  off_hour           = var.off_hour
  addresses          = length(var.addresses) == 0 ? [] : concat(var.addresses, compact([try(module.gcp[0].controller_address, null)]))
  machine_type       = var.azure.machine_type
  image              = var.azure.image
  accelerator        = var.azure.accelerator
  max_machines       = var.azure.max_machines
  spot               = var.azure.spot
  reservation        = var.azure.reservation
}

module "control" {
  source           = "../control"
  namespace        = local.namespace
  domain           = var.domain
  prefect_api_url  = var.domain == null ? local.api_url : null
  prefect_auth     = local.auth
  auth_variable    = local.auth_variable
  prefect          = try(module.gcp[0].prefect, null)
  service_accounts = try(module.gcp[0].service_accounts, null)
  identities       = merge({}, concat(module.aws[*].controller, module.azure[*].controller)...)
  images           = { worker = var.worker_image, controller = var.controller_image }
  registry_login   = var.registry_login
  gpu_pool         = try({ work_pool = module.gcp[0].platform.work_pool, accelerator = module.gcp[0].platform.accelerator }, null)
}
