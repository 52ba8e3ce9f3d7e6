variable "name" {
  type        = string
  description = "Prefix of every name; as buckets are named by it, no other customer of Google may use it."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{2,17}$", var.name))
    error_message = "Small letters, digits and hyphens, at most 18 in all."
  }
}

variable "project" {
  type = string
}

variable "region" {
  type = string
}

variable "prefix" {
  type        = string
  default     = "plumbline"
  description = "Folder in each bucket."
}

variable "namespace" {
  type        = string
  default     = "plumbline"
  description = "Kubernetes namespace of controller and trainings."
}

variable "domain" {
  type        = string
  default     = null
  description = "Name of the Prefect server, such as prefect.example.org; none is made without it."
}

variable "cluster" {
  type        = object({ issuer = string })
  default     = null
  description = "A cluster of the project, with its GPU nodes, that exists; none is made then."
}

variable "off_hour" {
  type        = number
  description = "Hour in UTC, from 0 to 23, at which a round has ended: upgrades come later."

  validation {
    condition     = contains(range(24), var.off_hour)
    error_message = "An hour from 0 to 23."
  }
}

# Both, and `accelerator`, are a row of plumbline/schema/machines.toml. Google installs image and driver of its nodes.
variable "machine_type" {
  type     = string
  default  = "g2-standard-8"
  nullable = false
}

variable "accelerator_type" {
  type        = string
  default     = "nvidia-l4"
  nullable    = false
  description = "The machine's GPU, as Google names it."
}

variable "accelerator" {
  type        = string
  default     = "NVIDIA L4"
  nullable    = false
  description = "The same GPU, as its driver names it."
}

variable "max_machines" {
  type     = number
  default  = 1
  nullable = false
}

variable "gpu_zones" {
  type        = list(string)
  description = "Zones of the region that have this GPU; name one for trainings on several machines."
}

variable "driver" {
  type        = string
  default     = "LATEST"
  nullable    = false
  description = "The GPU's driver: LATEST of the nodes' image, or INSTALLATION_DISABLED where a DaemonSet installs a certain version."

  # The image's DEFAULT is of an older branch than 580, which the lock's CUDA 13 needs.
  validation {
    condition     = contains(["LATEST", "INSTALLATION_DISABLED"], var.driver)
    error_message = "LATEST or INSTALLATION_DISABLED."
  }
}

variable "spot" {
  type        = bool
  default     = false
  nullable    = false
  description = "Use spare capacity, which Google may take back at any time."
}

variable "compact" {
  type        = bool
  default     = false
  nullable    = false
  description = "Put all machines next to each other in the first zone, for trainings on several machines."
}

variable "reservation" {
  type        = string
  default     = null
  description = "Reservation that the machines use, by its name."
}

variable "deletion_protection" {
  type        = bool
  default     = true
  nullable    = false
  description = "Whether `destroy` ends before buckets with objects, cluster and database."
}
