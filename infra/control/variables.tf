variable "namespace" {
  type    = string
  default = "plumbline"
}

variable "domain" {
  type        = string
  description = "Name of the Prefect server, such as prefect.example.org; null where one exists."
}

variable "prefect_api_url" {
  type        = string
  description = "API of the Prefect server that exists; null where this module makes one."
}

variable "prefect_auth" {
  type        = string
  sensitive   = true
  description = "User and password of the Prefect API, or a key of Prefect Cloud."
}

variable "auth_variable" {
  type        = string
  description = "Name under which Prefect reads it: PREFECT_API_AUTH_STRING or PREFECT_API_KEY."
}

variable "prefect" {
  type = object({
    address_name = string
    certificate  = string
    database_url = string
  })
  sensitive   = true
  description = "The new server's address and certificate by their names on Google Cloud, and its database."
}

variable "service_accounts" {
  type        = object({ worker = string, controller = string })
  description = "Google's service accounts of the pods; null without Google Cloud."
}

variable "identities" {
  type        = map(string)
  description = "Who the controller is on the other clouds, as environment of its SDKs."
}

variable "images" {
  type        = object({ worker = string, controller = string })
  description = "Images by their digests."
}

variable "registry_login" {
  type        = string
  sensitive   = true
  description = "USER:PASSWORD of a private registry of the images, or null."
}

variable "gpu_pool" {
  type        = object({ work_pool = string, accelerator = string })
  description = "Work pool of the cluster's GPU nodes, and the name of their GPU; null for none."
}
