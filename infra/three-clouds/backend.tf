# The state contains passwords: it is in a private bucket of the project, which exists before this is applied.
# OpenTofu reads variables here; docs/tutorials/clouds.md creates the bucket.
terraform {
  backend "gcs" {
    bucket = "${var.name}-state"
    prefix = "three-clouds"
  }
}
