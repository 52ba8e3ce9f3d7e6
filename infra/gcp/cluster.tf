# One cluster, unless there is one: a small node for Prefect and the controller, and GPU nodes that exist only while a
# training needs one.
locals {
  clusters = var.cluster == null ? 1 : 0
}

resource "google_compute_network" "this" {
  count                   = local.clusters
  name                    = var.name
  project                 = var.project
  auto_create_subnetworks = true
  depends_on              = [time_sleep.services]
}

# Nodes have no addresses of their own: this one leads out, and other clouds know the controller by it.
resource "google_compute_address" "out" {
  count   = local.clusters
  name    = "${var.name}-out"
  project = var.project
  region  = var.region

  depends_on = [time_sleep.services]
}

resource "google_compute_router" "this" {
  count   = local.clusters
  name    = var.name
  project = var.project
  region  = var.region
  network = google_compute_network.this[0].id
}

resource "google_compute_router_nat" "this" {
  count                              = local.clusters
  name                               = var.name
  project                            = var.project
  region                             = var.region
  router                             = google_compute_router.this[0].name
  nat_ip_allocate_option             = "MANUAL_ONLY"
  nat_ips                            = [google_compute_address.out[0].id]
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}

resource "google_container_cluster" "this" {
  count                    = local.clusters
  name                     = var.name
  project                  = var.project
  location                 = var.region
  network                  = google_compute_network.this[0].id
  remove_default_node_pool = true
  initial_node_count       = 1
  # The first pool, which is removed at once: three zones of 100 GB on SSD would be more than a new project has.
  node_locations        = [var.gpu_zones[0]]
  deletion_protection   = var.deletion_protection
  enable_shielded_nodes = true
  resource_labels       = { application = "plumbline" }

  node_config {
    disk_size_gb = 50
    disk_type    = "pd-standard"
  }

  # Google describes the pool of today here, and not the removed one.
  lifecycle {
    ignore_changes = [node_config]
  }

  # After the round: `off_hour` ends it at the latest.
  maintenance_policy {
    daily_maintenance_window {
      start_time = format("%02d:00", (var.off_hour + 1) % 24)
    }
  }

  datapath_provider = "ADVANCED_DATAPATH"

  ip_allocation_policy {}

  private_cluster_config {
    enable_private_nodes = true
  }

  release_channel {
    channel = "STABLE"
  }

  workload_identity_config {
    workload_pool = local.workload_pool
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }
}

resource "google_container_node_pool" "control" {
  count      = local.clusters
  name       = "control"
  project    = var.project
  cluster    = google_container_cluster.this[0].name
  location   = var.region
  node_count = 1
  depends_on = [google_compute_router_nat.this]

  # One zone: a second node would only wait.
  node_locations = [var.gpu_zones[0]]

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type    = "e2-standard-4"
    disk_size_gb    = 50
    disk_type       = "pd-standard"
    image_type      = "COS_CONTAINERD"
    service_account = google_service_account.this["nodes"].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }
}

resource "google_container_node_pool" "gpu" {
  count              = local.clusters
  name               = "gpu"
  project            = var.project
  cluster            = google_container_cluster.this[0].name
  location           = var.region
  node_locations     = var.compact ? slice(var.gpu_zones, 0, 1) : var.gpu_zones
  initial_node_count = 0

  dynamic "placement_policy" {
    for_each = var.compact ? ["COMPACT"] : []

    content {
      type = placement_policy.value
    }
  }

  # Of these zones, the autoscaler takes one that has a machine.
  autoscaling {
    total_min_node_count = 0
    total_max_node_count = var.max_machines
    location_policy      = "ANY"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type    = var.machine_type
    image_type      = "COS_CONTAINERD"
    disk_size_gb    = 150
    spot            = var.spot
    service_account = google_service_account.this["nodes"].email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    # The name that infra/kubernetes/gpu-job-template.json selects nodes by.
    labels = {
      "nvidia.com/gpu.product" = replace(var.accelerator, " ", "-")
    }

    guest_accelerator {
      type  = var.accelerator_type
      count = 1

      gpu_driver_installation_config {
        gpu_driver_version = var.driver
      }
    }

    dynamic "reservation_affinity" {
      for_each = var.reservation == null ? [] : [var.reservation]

      content {
        consume_reservation_type = "SPECIFIC_RESERVATION"
        key                      = "compute.googleapis.com/reservation-name"
        values                   = [var.reservation]
      }
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }
}
