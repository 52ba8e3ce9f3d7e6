variable "name" {
  type        = string
  description = "Prefix of every name; as buckets are named by it, no other AWS customer may use it."
}

variable "prefix" {
  type        = string
  default     = "plumbline"
  description = "Folder in each bucket."
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
    repository      = string
    tag             = string
    prefect_api_url = string
    work_pool       = string
  })
  description = "What a machine installs, and the work pool that it serves."
}

variable "prefect_auth" {
  type        = string
  sensitive   = true
  description = "User and password of the Prefect API."
}

# These three are a row of plumbline/schema/machines.toml; tests/unit/infra compares them.
variable "machine_type" {
  type     = string
  default  = "g5.2xlarge"
  nullable = false
}

variable "image" {
  type     = string
  default  = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260915"
  nullable = false
}

variable "accelerator" {
  type        = string
  default     = "NVIDIA A10G"
  nullable    = false
  description = "The machine's GPU, as its driver names it."
}

variable "spot" {
  type        = bool
  default     = false
  nullable    = false
  description = "Use spare capacity, which AWS may take back at any time."
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
  description = "Capacity reservation that the machines use, by its id."
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

variable "vcpu_quota" {
  type        = number
  default     = 8
  nullable    = false
  description = "Virtual CPUs of G machines that the account may use at once; a new account may use none."
}

variable "deletion_protection" {
  type        = bool
  default     = true
  nullable    = false
  description = "Whether `destroy` ends before buckets with objects."
}
