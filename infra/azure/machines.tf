# GPU machines, none of them on but for a round: the controller starts and stops them.
locals {
  # Ubuntu has a group `operator`, and Azure refuses `admin`, `root` and other usual names.
  admin = "plumbline-admin"
}

resource "azurerm_virtual_network" "this" {
  name                = var.name
  resource_group_name = azurerm_resource_group.this.name
  location            = azurerm_resource_group.this.location
  address_space       = ["10.60.0.0/24"]
}

resource "azurerm_subnet" "worker" {
  name                 = "worker"
  resource_group_name  = azurerm_resource_group.this.name
  virtual_network_name = azurerm_virtual_network.this.name
  address_prefixes     = ["10.60.0.0/25"]

  service_endpoint {
    service = "Microsoft.KeyVault"
  }

  service_endpoint {
    service = "Microsoft.Storage"
  }
}

# An instance's own address would be of the Basic SKU, of which a subscription may have none; of this range it is Standard.
resource "azurerm_public_ip_prefix" "worker" {
  name                = "${var.name}-worker"
  resource_group_name = azurerm_resource_group.this.name
  location            = azurerm_resource_group.this.location
  sku                 = "Standard"
  prefix_length       = 32 - ceil(log(max(var.max_machines, 2), 2))
}

# Without rules of its own, a security group lets nothing in from outside.
resource "azurerm_network_security_group" "worker" {
  name                = "${var.name}-worker"
  resource_group_name = azurerm_resource_group.this.name
  location            = azurerm_resource_group.this.location
}

resource "azurerm_subnet_network_security_group_association" "worker" {
  subnet_id                 = azurerm_subnet.worker.id
  network_security_group_id = azurerm_network_security_group.worker.id
}

# Azure demands a key or a password of every machine. Nothing reaches its port.
resource "tls_private_key" "unused" {
  algorithm = "RSA"
  rsa_bits  = 4096
}

resource "azurerm_linux_virtual_machine_scale_set" "worker" {
  name                            = "${var.name}-worker"
  resource_group_name             = azurerm_resource_group.this.name
  location                        = azurerm_resource_group.this.location
  sku                             = var.machine_type
  instances                       = 0
  admin_username                  = local.admin
  disable_password_authentication = true
  encryption_at_host_enabled      = false
  priority                        = var.spot ? "Spot" : "Regular"
  eviction_policy                 = var.spot ? "Delete" : null
  capacity_reservation_group_id   = var.reservation
  # Azure takes a reservation only outside of a placement group.
  single_placement_group = var.reservation == null
  # Extra machines might take a training before Azure deletes them.
  overprovision = false
  custom_data = base64encode(templatefile("${path.module}/../cloud-init/worker.yaml", merge(var.worker, {
    machine = templatefile("${path.module}/machine.py", {
      client_id = azurerm_user_assigned_identity.this["worker"].client_id
      secret    = azurerm_key_vault_secret.worker.versionless_id
    })
  })))

  admin_ssh_key {
    username   = local.admin
    public_key = tls_private_key.unused.public_key_openssh
  }

  source_image_id = startswith(var.image, "/") ? var.image : null

  dynamic "source_image_reference" {
    for_each = startswith(var.image, "/") ? [] : [split(":", var.image)]

    content {
      publisher = source_image_reference.value[0]
      offer     = source_image_reference.value[1]
      sku       = source_image_reference.value[2]
      version   = source_image_reference.value[3]
    }
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
    disk_size_gb         = 150
  }

  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.this["worker"].id]
  }

  # The address leads out alone; a gateway would cost also while no machine is on.
  network_interface {
    name    = "worker"
    primary = true

    ip_configuration {
      name      = "worker"
      primary   = true
      subnet_id = azurerm_subnet.worker.id

      public_ip_address {
        name                = "out"
        public_ip_prefix_id = azurerm_public_ip_prefix.worker.id
      }
    }
  }

  lifecycle {
    ignore_changes = [instances]
  }
}

# Azure stops what a lost controller left on: for a quarter of an hour it allows none, and otherwise as many as the controller wants.
resource "azurerm_monitor_autoscale_setting" "worker" {
  name                = "${var.name}-worker"
  resource_group_name = azurerm_resource_group.this.name
  location            = azurerm_resource_group.this.location
  target_resource_id  = azurerm_linux_virtual_machine_scale_set.worker.id

  dynamic "profile" {
    for_each = {
      off  = { minute = 0, most = 0 }
      free = { minute = 15, most = var.max_machines }
    }

    content {
      name = profile.key

      capacity {
        minimum = 0
        default = 0
        maximum = profile.value.most
      }

      recurrence {
        timezone = "UTC"
        days     = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
        hours    = [var.off_hour]
        minutes  = [profile.value.minute]
      }
    }
  }
}
