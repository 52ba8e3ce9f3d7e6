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

# Both, and the GPU of outputs.tf, are a row of plumbline/schema/machines.toml; tests/unit/infra compares them.
variable "machine_type" {
  type    = string
  default = "g5.2xlarge"
}

variable "image" {
  type    = string
  default = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260915"
}

variable "max_machines" {
  type    = number
  default = 1
}

variable "off_hour" {
  type        = number
  description = "Hour in UTC, from 0 to 22, at which the cloud stops the machines, whatever happened to the round."
}

variable "vcpu_quota" {
  type        = number
  default     = 8
  description = "Virtual CPUs of G machines that the account may use at once; a new account may use none."
}
