variable "name" {
  type        = string
  description = "Prefix of every name. The storage account and the vault are named by its letters and digits, which no other Azure customer may use."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{2,17}$", var.name))
    error_message = "Small letters, digits and hyphens, at most 18 in all."
  }
}

variable "region" {
  type = string
}

variable "prefix" {
  type        = string
  default     = "plumbline"
  description = "Folder in each container."
}

variable "issuer" {
  type        = string
  description = "OpenID Connect issuer of the controller's cluster, without https://."
}

variable "controller_subject" {
  type        = string
  description = "The controller, as its cluster names it: system:serviceaccount:NAMESPACE:NAME."
}

variable "worker" {
  type = object({
    image           = string
    prefect_api_url = string
    work_pool       = string
    idle_minutes    = number
    max_minutes     = number
  })
  description = "The worker's image by its digest, the work pool that it serves, and after how many minutes a machine without a training, or any machine, ends itself."
}

variable "addresses" {
  type        = list(string)
  default     = []
  description = "Public IPv4 addresses that reach vault and stores beside the machines: the controller's, and those of who applies this and publishes data. Empty for all."
}

variable "secret" {
  type        = string
  sensitive   = true
  description = "Lines NAME=VALUE that a machine reads at its start: PREFECT_API_AUTH_STRING or PREFECT_API_KEY, and REGISTRY_LOGIN (user:password) for a private registry."
}

# These three are a row of plumbline/schema/machines.toml; tests/unit/infra compares them.
variable "machine_type" {
  type     = string
  default  = "Standard_NC24ads_A100_v4"
  nullable = false
}

variable "image" {
  type     = string
  default  = "microsoft-dsvm:ubuntu-hpc:2404:24.04.2026072901"
  nullable = false
}

variable "accelerator" {
  type        = string
  default     = "NVIDIA A100 80GB PCIe"
  nullable    = false
  description = "The machine's GPU, as its driver names it."
}

variable "spot" {
  type        = bool
  default     = false
  nullable    = false
  description = "Use spare capacity, which Azure may take back at any time."
}

variable "reservation" {
  type        = string
  default     = null
  description = "Capacity reservation group that the machines use, by its id."
}

variable "max_machines" {
  type     = number
  default  = 1
  nullable = false
}

variable "off_hour" {
  type        = number
  description = "Hour in UTC, from 0 to 23, at which the cloud stops the machines, whatever happened to the round."

  validation {
    condition     = contains(range(24), var.off_hour)
    error_message = "An hour from 0 to 23."
  }
}
