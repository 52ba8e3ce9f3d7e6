# What a Prefect server of one's own needs of Google: a database that only the cluster's network reaches, an address, a
# certificate. A domain makes one, and a cluster has to be made with it.
locals {
  servers = var.domain == null ? 0 : 1
}

resource "google_compute_global_address" "database" {
  count         = local.servers
  name          = "${var.name}-database"
  project       = var.project
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  prefix_length = 20
  network       = google_compute_network.this[0].id
}

resource "google_service_networking_connection" "database" {
  count                   = local.servers
  network                 = google_compute_network.this[0].id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.database[0].name]
  # Google keeps the connection for days after the database is gone, and its peering would keep the network.
  deletion_policy = "REMOVE_PEERING"
}

resource "google_sql_database_instance" "prefect" {
  count               = local.servers
  name                = "${var.name}-prefect"
  project             = var.project
  region              = var.region
  database_version    = "POSTGRES_17"
  deletion_protection = var.deletion_protection
  depends_on          = [google_service_networking_connection.database]

  settings {
    tier    = "db-custom-1-3840"
    edition = "ENTERPRISE"

    # Sunday, after the round.
    maintenance_window {
      day          = 7
      hour         = (var.off_hour + 1) % 24
      update_track = "stable"
    }

    backup_configuration {
      enabled                        = true
      point_in_time_recovery_enabled = true
    }

    ip_configuration {
      ipv4_enabled    = false
      private_network = google_compute_network.this[0].id
      ssl_mode        = "ENCRYPTED_ONLY"
    }
  }
}

resource "random_password" "database" {
  count   = local.servers
  length  = 32
  special = false
}

resource "google_sql_user" "prefect" {
  count    = local.servers
  name     = "prefect"
  project  = var.project
  instance = google_sql_database_instance.prefect[0].name
  password = random_password.database[0].result
  # PostgreSQL refuses to drop an owner of tables. The instance takes user and database with it.
  deletion_policy = "ABANDON"
}

resource "google_sql_database" "prefect" {
  count           = local.servers
  name            = "prefect"
  project         = var.project
  instance        = google_sql_database_instance.prefect[0].name
  deletion_policy = "ABANDON"
}

resource "google_compute_global_address" "prefect" {
  count      = local.servers
  name       = "${var.name}-prefect"
  project    = var.project
  depends_on = [time_sleep.services]
}

resource "google_compute_managed_ssl_certificate" "prefect" {
  count      = local.servers
  name       = "${var.name}-prefect"
  project    = var.project
  depends_on = [time_sleep.services]

  managed {
    domains = [var.domain]
  }
}
