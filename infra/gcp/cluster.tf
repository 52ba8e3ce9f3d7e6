# One cluster: a small node for Prefect and the controller, and GPU nodes that exist only while a training needs one.
resource "google_compute_network" "this" {
  name                    = var.name
  project                 = var.project
  auto_create_subnetworks = true
  depends_on              = [google_project_service.this]
}

resource "google_container_cluster" "this" {
  name                     = var.name
  project                  = var.project
  location                 = var.region
  network                  = google_compute_network.this.id
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = false
  enable_shielded_nodes    = true
  resource_labels          = { application = "plumbline" }

  datapath_provider = "ADVANCED_DATAPATH"

  ip_allocation_policy {}

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

  # One zone: a second node would only wait.
  node_locations = [data.google_compute_zones.this.names[0]]

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
  node_locations     = var.gpu_zones
  initial_node_count = 0

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
        gpu_driver_version = "LATEST"
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

data "google_compute_zones" "this" {
  project    = var.project
  region     = var.region
  depends_on = [google_project_service.this]
}

data "google_client_openid_userinfo" "this" {}

# Google answers the request within a day or two; a new project may use no GPU.
resource "google_cloud_quotas_quota_preference" "gpus" {
  parent        = "projects/${var.project}"
  name          = "${var.name}-gpus"
  service       = "compute.googleapis.com"
  quota_id      = "GPUS-ALL-REGIONS-per-project"
  contact_email = data.google_client_openid_userinfo.this.email
  depends_on    = [google_project_service.this]

  quota_config {
    preferred_value = var.max_machines
  }
}
