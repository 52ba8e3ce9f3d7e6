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

output "controller" {
  description = "Who the controller is on Azure."
  value = {
    azure_client_id = azurerm_user_assigned_identity.this["controller"].client_id
    azure_tenant_id = data.azurerm_client_config.this.tenant_id
  }
}
