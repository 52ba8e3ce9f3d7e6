output "platform" {
  description = "This platform, as a suite names it."
  value = {
    work_pool   = var.worker.work_pool
    data        = "az://${azurerm_storage_account.this.name}/${azurerm_storage_container.store["data"].name}/${var.prefix}"
    outbox      = "az://${azurerm_storage_account.this.name}/${azurerm_storage_container.store["outbox"].name}/${var.prefix}"
    accelerator = var.accelerator
    machines    = "azure://${data.azurerm_client_config.this.subscription_id}/${azurerm_resource_group.this.name}/${azurerm_linux_virtual_machine_scale_set.worker.name}"
  }
}

output "store" {
  description = "A store of the controller's own, where Google Cloud has none."
  value       = "az://${azurerm_storage_account.this.name}/${azurerm_storage_container.store["central"].name}/${var.prefix}"
}

output "controller" {
  description = "Who the controller is on Azure, as its SDK reads it."
  value = {
    AZURE_CLIENT_ID            = azurerm_user_assigned_identity.this["controller"].client_id
    AZURE_TENANT_ID            = data.azurerm_client_config.this.tenant_id
    AZURE_FEDERATED_TOKEN_FILE = "/var/run/secrets/azure/token"
  }
}
