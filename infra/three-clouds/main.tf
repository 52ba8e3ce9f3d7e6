# Plumbline on AWS, Azure and Google Cloud; Prefect and the controller run on Google Cloud.
locals {
  namespace  = "plumbline"
  controller = "system:serviceaccount:${local.namespace}:plumbline-controller"
  auth       = "plumbline:${random_password.prefect.result}"
  gcp_region = join("-", slice(split("-", var.gcp_zones[0]), 0, 2))
  worker = {
    repository      = var.repository
    tag             = var.tag
    prefect_api_url = "https://${var.domain}/api"
  }
}

provider "aws" {
  region = var.aws_region
}

provider "azurerm" {
  subscription_id     = var.azure_subscription
  storage_use_azuread = true

  # A new subscription knows no service until its provider is registered.
  resource_provider_registrations = "none"
  resource_providers_to_register  = ["Microsoft.Compute", "Microsoft.Insights", "Microsoft.KeyVault", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage"]

  features {}
}

# Google's quotas are asked for in the name of the project.
provider "google" {
  project               = var.gcp_project
  region                = local.gcp_region
  billing_project       = var.gcp_project
  user_project_override = true
}

data "google_client_config" "this" {}

provider "kubernetes" {
  host                   = module.gcp.cluster.endpoint
  cluster_ca_certificate = module.gcp.cluster.certificate
  token                  = data.google_client_config.this.access_token
}

provider "helm" {
  kubernetes = {
    host                   = module.gcp.cluster.endpoint
    cluster_ca_certificate = module.gcp.cluster.certificate
    token                  = data.google_client_config.this.access_token
  }
}

# Docker runs where this is applied, and pushes as who applies it.
provider "docker" {
  registry_auth {
    address  = split("/", module.gcp.registry)[0]
    username = "oauth2accesstoken"
    password = data.google_client_config.this.access_token
  }
}

resource "random_password" "prefect" {
  length  = 32
  special = false
}

module "gcp" {
  source              = "../gcp"
  name                = var.name
  project             = var.gcp_project
  region              = local.gcp_region
  gpu_zones           = var.gcp_zones
  namespace           = local.namespace
  domain              = var.domain
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
  source             = "../aws"
  name               = var.name
  issuer             = module.gcp.cluster.issuer
  controller_subject = local.controller
  worker             = merge(local.worker, { work_pool = "aws-gpu" })
  prefect_auth       = local.auth
  off_hour           = var.off_hour
  machine_type       = var.aws.machine_type
  image              = var.aws.image
  accelerator        = var.aws.accelerator
  max_machines       = var.aws.max_machines
  vcpu_quota         = var.aws.vcpu_quota
  spot               = var.aws.spot
  compact            = var.aws.compact
  reservation        = var.aws.reservation

  deletion_protection = var.deletion_protection
}

module "azure" {
  source             = "../azure"
  name               = var.name
  region             = var.azure_region
  issuer             = module.gcp.cluster.issuer
  controller_subject = local.controller
  worker             = merge(local.worker, { work_pool = "azure-gpu" })
  prefect_auth       = local.auth
  off_hour           = var.off_hour
  addresses          = length(var.addresses) == 0 ? [] : concat(var.addresses, [module.gcp.controller_address])
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
  prefect_auth     = local.auth
  prefect          = module.gcp.prefect
  service_accounts = module.gcp.service_accounts
  identities       = merge(module.aws.controller, module.azure.controller)
  registry         = module.gcp.registry
  repository       = var.repository
  tag              = var.tag
  gpu_pool         = { work_pool = module.gcp.platform.work_pool, accelerator = module.gcp.platform.accelerator }
}
