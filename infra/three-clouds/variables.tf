# The nine values that a team fills in, in terraform.tfvars.
variable "name" {
  type        = string
  description = "Prefix of every name, such as acme-plumbline: small letters, digits and hyphens, at most 18 in all."
}

variable "domain" {
  type        = string
  description = "Name of the Prefect server, such as prefect.example.org."
}

variable "repository" {
  type        = string
  description = "URL of this repository, which machines and Docker clone without a login."
}

variable "tag" {
  type        = string
  description = "Tag of the repository that machines and images install; or its commit, which nobody can move."
}

variable "aws_region" {
  type = string
}

variable "azure_subscription" {
  type = string
}

variable "azure_region" {
  type = string
}

variable "gcp_project" {
  type = string
}

variable "gcp_zones" {
  type        = list(string)
  description = "Zones of one region that have the GPU, such as [\"us-central1-a\"]; everything on Google Cloud is in their region."

  validation {
    condition     = length(var.gcp_zones) > 0 && length(distinct([for zone in var.gcp_zones : join("-", slice(split("-", zone), 0, 2))])) == 1
    error_message = "At least one zone, and all of one region."
  }
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
    vcpu_quota   = optional(number)
    spot         = optional(bool)
    compact      = optional(bool)
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
