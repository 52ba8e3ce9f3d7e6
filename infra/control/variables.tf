variable "namespace" {
  type    = string
  default = "plumbline"
}

variable "domain" {
  type        = string
  description = "Name of the Prefect server, such as prefect.example.org."
}

variable "prefect_auth" {
  type        = string
  sensitive   = true
  description = "User and password of the Prefect API."
}

variable "prefect" {
  type = object({
    address_name = string
    certificate  = string
    database_url = string
  })
  sensitive   = true
  description = "The server's address and certificate by their names on Google Cloud, and its database."
}

variable "service_accounts" {
  type        = object({ worker = string, controller = string })
  description = "Google's service accounts of the pods."
}

variable "identities" {
  type = object({
    aws_region      = string
    aws_role_arn    = string
    azure_client_id = string
    azure_tenant_id = string
  })
  description = "Who the controller is on the other clouds."
}

variable "registry" {
  type        = string
  description = "Where the images are pushed to."
}

variable "repository" {
  type        = string
  description = "URL of the repository that the images are built of; no login may be needed."
}

variable "tag" {
  type        = string
  description = "Tag or commit of the repository, and tag of the images."
}

variable "gpu_pool" {
  type        = object({ work_pool = string, accelerator = string })
  description = "Work pool of the cluster's GPU nodes, and the name of their GPU."
}
