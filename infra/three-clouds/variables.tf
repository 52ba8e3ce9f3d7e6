# The nine values that a team fills in, in terraform.tfvars.
variable "name" {
  type        = string
  description = "Prefix of every name, such as acme-plumbline: small letters, digits and hyphens, at most 18 in all."
}

variable "domain" {
  type        = string
  description = "Name of the Prefect server that is made, such as prefect.example.org; null where one exists."
}

variable "worker_image" {
  type        = string
  description = "Image of all workers by its digest: infra/images prints it."

  validation {
    condition     = can(regex("^[^@]+/[^@]+@sha256:[0-9a-f]{64}$", var.worker_image))
    error_message = "REGISTRY/NAME@sha256:DIGEST."
  }
}

variable "controller_image" {
  type        = string
  description = "Image of the controller by its digest."

  validation {
    condition     = can(regex("^[^@]+/[^@]+@sha256:[0-9a-f]{64}$", var.controller_image))
    error_message = "REGISTRY/NAME@sha256:DIGEST."
  }
}

variable "aws_region" {
  type        = string
  description = "Null leaves AWS out."
}

variable "azure_subscription" {
  type        = string
  description = "Null leaves Azure out."
}

variable "azure_region" {
  type = string
}

variable "gcp_project" {
  type        = string
  description = "Null leaves Google Cloud out: `cluster` and `prefect_api_url` are needed then."
}

variable "gcp_zones" {
  type        = list(string)
  description = "Zones of one region that have the GPU, such as [\"us-central1-a\"]; everything on Google Cloud is in their region."

  validation {
    condition     = length(distinct([for zone in var.gcp_zones : join("-", slice(split("-", zone), 0, 2))])) < 2
    error_message = "All of one region."
  }
}

variable "prefect_api_url" {
  type        = string
  default     = null
  description = "API of a Prefect server that exists, or of a workspace of Prefect Cloud."
}

variable "prefect_auth" {
  type        = string
  sensitive   = true
  default     = null
  description = "USER:PASSWORD of that server, or the key of Prefect Cloud."
}

# With nodes of the GPU, whose label nvidia.com/gpu.product has its name; of the project, if there is one.
variable "cluster" {
  type        = object({ endpoint = string, certificate = string, issuer = string })
  default     = null
  description = "A Kubernetes cluster that exists: its https:// address, its certificate (PEM), and its issuer without https://."
}

variable "cluster_login" {
  type        = list(string)
  default     = ["gke-gcloud-auth-plugin"]
  description = "Command that prints a token of the cluster, as kubectl runs it."
}

variable "registry_login" {
  type        = string
  sensitive   = true
  default     = null
  description = "USER:PASSWORD that reads the images, if their registry wants one."
}

# In UTC: a night is over by then.
variable "off_hour" {
  type    = number
  default = 6
}

variable "addresses" {
  type        = list(string)
  default     = []
  description = "Public IPv4 addresses of who applies this and publishes data: where given, Azure's vault and stores refuse all others but controller and machines."
}

# `destroy` ends before buckets with objects, cluster and database until an apply has set this to false.
variable "deletion_protection" {
  type    = bool
  default = true
}

# Machines other than those of plumbline/schema/machines.toml; a key that is left out is the module's own default.
variable "aws" {
  type = object({
    machine_type = optional(string)
    image        = optional(string)
    accelerator  = optional(string)
    max_machines = optional(number)
    spot         = optional(bool)
    reservation  = optional(string)
  })
  default = {}
}

variable "azure" {
  type = object({
    machine_type = optional(string)
    image        = optional(string)
    accelerator  = optional(string)
    max_machines = optional(number)
    spot         = optional(bool)
    reservation  = optional(string)
  })
  default = {}
}

variable "gcp" {
  type = object({
    machine_type     = optional(string)
    accelerator_type = optional(string)
    driver           = optional(string)
    accelerator      = optional(string)
    max_machines     = optional(number)
    spot             = optional(bool)
    compact          = optional(bool)
    reservation      = optional(string)
  })
  default = {}
}
