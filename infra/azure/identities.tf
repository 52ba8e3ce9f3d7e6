# The worker's identity is its machine's, the controller's comes by federation from its cluster: no key exists anywhere.
locals {
  writer = jsondecode(file("${path.module}/worker-outbox-role.json"))
}

resource "azurerm_user_assigned_identity" "this" {
  for_each            = toset(["worker", "controller"])
  name                = "${var.name}-${each.key}"
  resource_group_name = azurerm_resource_group.this.name
  location            = azurerm_resource_group.this.location
}

resource "azurerm_federated_identity_credential" "controller" {
  name                      = "controller"
  user_assigned_identity_id = azurerm_user_assigned_identity.this["controller"].id
  issuer                    = "https://${var.issuer}"
  subject                   = var.controller_subject
  audience                  = ["api://AzureADTokenExchange"]
}

resource "azurerm_role_definition" "writer" {
  name              = "${local.writer["Name"]} of ${var.name}"
  description       = local.writer["Description"]
  scope             = azurerm_resource_group.this.id
  assignable_scopes = [azurerm_resource_group.this.id]

  permissions {
    data_actions = local.writer["DataActions"]
  }
}

resource "azurerm_role_assignment" "worker_reads_data" {
  scope                = azurerm_storage_container.store["data"].id
  role_definition_name = "Storage Blob Data Reader"
  principal_id         = azurerm_user_assigned_identity.this["worker"].principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_role_assignment" "worker_writes_outbox" {
  scope              = azurerm_storage_container.store["outbox"].id
  role_definition_id = azurerm_role_definition.writer.role_definition_resource_id
  principal_id       = azurerm_user_assigned_identity.this["worker"].principal_id
  principal_type     = "ServicePrincipal"
}

resource "azurerm_role_assignment" "controller" {
  for_each           = local.stores
  scope              = azurerm_storage_container.store[each.key].id
  role_definition_id = azurerm_role_definition.writer.role_definition_resource_id
  principal_id       = azurerm_user_assigned_identity.this["controller"].principal_id
  principal_type     = "ServicePrincipal"
}

# Who applies this module publishes the first data; an owner of a subscription reads no blob without a role for it.
resource "azurerm_role_assignment" "publisher" {
  for_each           = local.stores
  scope              = azurerm_storage_container.store[each.key].id
  role_definition_id = azurerm_role_definition.writer.role_definition_resource_id
  principal_id       = data.azurerm_client_config.this.object_id
}

# The controller starts and stops machines; a machine ends itself.
resource "azurerm_role_definition" "machines" {
  for_each          = { controller = ["read", "write"], worker = ["delete/action"] }
  name              = "Plumbline machines of ${var.name} by the ${each.key}"
  scope             = azurerm_resource_group.this.id
  assignable_scopes = [azurerm_resource_group.this.id]

  permissions {
    actions = [for action in each.value : "Microsoft.Compute/virtualMachineScaleSets/${action}"]
  }
}

resource "azurerm_role_assignment" "machines" {
  for_each           = azurerm_role_definition.machines
  scope              = azurerm_linux_virtual_machine_scale_set.worker.id
  role_definition_id = each.value.role_definition_resource_id
  principal_id       = azurerm_user_assigned_identity.this[each.key].principal_id
  principal_type     = "ServicePrincipal"
}

resource "azurerm_key_vault" "this" {
  name                       = local.short
  resource_group_name        = azurerm_resource_group.this.name
  location                   = azurerm_resource_group.this.location
  tenant_id                  = data.azurerm_client_config.this.tenant_id
  sku_name                   = "standard"
  rbac_authorization_enabled = true
  purge_protection_enabled   = true
  soft_delete_retention_days = 7

  dynamic "network_acls" {
    for_each = length(var.addresses) == 0 ? [] : [var.addresses]

    content {
      default_action             = "Deny"
      bypass                     = "AzureServices"
      ip_rules                   = var.addresses
      virtual_network_subnet_ids = [azurerm_subnet.worker.id]
    }
  }
}

resource "azurerm_role_assignment" "vault_officer" {
  scope                = azurerm_key_vault.this.id
  role_definition_name = "Key Vault Secrets Officer"
  principal_id         = data.azurerm_client_config.this.object_id
}

# Azure answers 403 until it knows the assignment everywhere.
resource "time_sleep" "vault_officer" {
  create_duration = "180s"
  triggers        = { assignment = azurerm_role_assignment.vault_officer.id }
}

resource "azurerm_role_assignment" "worker_reads_vault" {
  scope                = azurerm_key_vault.this.id
  role_definition_name = "Key Vault Secrets User"
  principal_id         = azurerm_user_assigned_identity.this["worker"].principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_key_vault_secret" "worker" {
  name         = "worker"
  value        = var.secret
  content_type = "environment of a worker"
  key_vault_id = azurerm_key_vault.this.id
  depends_on   = [time_sleep.vault_officer]
}
