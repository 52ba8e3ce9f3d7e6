# The containers: data, which workers only read; outbox, where they create records; central, the controller's own.
locals {
  stores = toset(["data", "outbox", "central"])
  short  = replace(var.name, "-", "")
}

data "azurerm_client_config" "this" {}

resource "azurerm_resource_group" "this" {
  name     = var.name
  location = var.region
}

resource "azurerm_storage_account" "this" {
  name                            = local.short
  resource_group_name             = azurerm_resource_group.this.name
  location                        = azurerm_resource_group.this.location
  account_tier                    = "Standard"
  account_replication_type        = "ZRS"
  min_tls_version                 = "TLS1_2"
  https_traffic_only_enabled      = true
  allow_nested_items_to_be_public = false
  shared_access_key_enabled       = false

  dynamic "network_rules" {
    for_each = length(var.addresses) == 0 ? [] : [var.addresses]

    content {
      default_action             = "Deny"
      ip_rules                   = var.addresses
      virtual_network_subnet_ids = [azurerm_subnet.worker.id]
    }
  }

  blob_properties {
    versioning_enabled = true

    delete_retention_policy {
      days = 30
    }

    container_delete_retention_policy {
      days = 30
    }
  }
}

resource "azurerm_storage_container" "store" {
  for_each              = local.stores
  name                  = each.key
  storage_account_id    = azurerm_storage_account.this.id
  container_access_type = "private"
}

# `plumbline store prune` removes rounds; here only what it cannot see.
resource "azurerm_storage_management_policy" "this" {
  storage_account_id = azurerm_storage_account.this.id

  rule {
    name    = "leftovers"
    enabled = true

    filters {
      blob_types = ["blockBlob"]
    }

    actions {
      version {
        delete_after_days_since_creation = 30
      }
    }
  }
}
