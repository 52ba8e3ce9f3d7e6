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
  description = "URL of this repository, which the machines clone."
}

variable "tag" {
  type        = string
  description = "Tag of the repository that the machines install, and of the images."
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

variable "gcp_region" {
  type = string
}

# In UTC: a night is over by then.
variable "off_hour" {
  type    = number
  default = 6
}
