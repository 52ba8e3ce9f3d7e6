# One cluster: a small node for Prefect and the controller, and GPU nodes that exist only while a training needs one.
resource "google_compute_network" "this" {
  name                    = var.name
  project                 = var.project
  auto_create_subnetworks = true
  depends_on              = [time_sleep.services]
}

# Nodes have no addresses of their own: this one leads out, and other clouds know the controller by it.
resource "google_compute_address" "out" {
  name    = "${var.name}-out"
  project = var.project
  region  = var.region

  depends_on = [time_sleep.services]
}

resource "google_compute_router" "this" {
  name    = var.name
  project = var.project
  region  = var.region
  network = google_compute_network.this.id
}

resource "google_compute_router_nat" "this" {
  name                               = var.name
  project                            = var.project
  region                             = var.region
  router                             = google_compute_router.this.name
  nat_ip_allocate_option             = "MANUAL_ONLY"
  nat_ips                            = [google_compute_address.out.id]
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}

resource "google_container_cluster" "this" {
  name                     = var.name
  project                  = var.project
  location                 = var.region
  network                  = google_compute_network.this.id
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = var.deletion_protection
  enable_shielded_nodes    = true
  resource_labels          = { application = "plumbline" }

  datapath_provider = "ADVANCED_DATAPATH"

  ip_allocation_policy {}

  private_cluster_config {
    enable_private_nodes = true
  }

  release_channel {
    channel = "STABLE"
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }
}

resource "google_container_node_pool" "control" {
  name       = "control"
  project    = var.project
  cluster    = google_container_cluster.this.name
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
  name               = "gpu"
  project            = var.project
  cluster            = google_container_cluster.this.name
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

data "google_client_openid_userinfo" "this" {}

locals {
  quota         = { service = "compute.googleapis.com", id = "GPUS-ALL-REGIONS-per-project" }
  present_quota = tonumber(one(data.google_cloud_quotas_quota_info.gpus.dimensions_infos).details[0].value)
}

data "google_cloud_quotas_quota_info" "gpus" {
  parent     = "projects/${var.project}"
  service    = local.quota.service
  quota_id   = local.quota.id
  depends_on = [time_sleep.services]
}

# Google answers the request within a day or two; a new project may use no GPU. It would also lower what a project has.
resource "google_cloud_quotas_quota_preference" "gpus" {
  parent        = "projects/${var.project}"
  name          = "${var.name}-gpus"
  service       = local.quota.service
  quota_id      = local.quota.id
  contact_email = data.google_client_openid_userinfo.this.email
  depends_on    = [time_sleep.services]

  quota_config {
    preferred_value = local.present_quota < 0 ? local.present_quota : max(var.max_machines, local.present_quota)
  }
}
