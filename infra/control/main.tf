# Prefect's server, unless there is one, the worker of the controllers and that of the GPU nodes: all by Prefect's own
# charts.
locals {
  servers       = var.domain == null ? 0 : 1
  registry      = split("/", var.images.worker)[0]
  charts        = "https://prefecthq.github.io/prefect-helm"
  chart_version = "2026.8.18172642"
  values = {
    prefect = "3.8.8"
    api_url = var.prefect_api_url == null ? "http://prefect-server.${var.namespace}.svc.cluster.local:4200/api" : var.prefect_api_url
    auth    = var.auth_variable
    secret  = kubernetes_secret_v1.prefect.metadata[0].name
    pull    = one(kubernetes_secret_v1.registry[*].metadata[0].name)
    # Kubernetes restarts no pod because its Secret changed; a different annotation does.
    checksum = nonsensitive(sha256(jsonencode([var.prefect_auth, var.prefect, var.registry_login])))
  }

  # The base job template with this cluster's image and GPU as the defaults.
  template   = jsondecode(file("${path.module}/../kubernetes/gpu-job-template.json"))
  properties = local.template.variables.properties
  job_template = merge(local.template, {
    variables = merge(local.template.variables, {
      properties = merge(local.properties, {
        namespace   = merge(local.properties.namespace, { default = var.namespace })
        image       = merge(local.properties.image, { default = var.images.worker })
        gpu_product = merge(local.properties.gpu_product, { default = var.gpu_pool == null ? null : replace(var.gpu_pool.accelerator, " ", "-") })
        cpu         = merge(local.properties.cpu, { default = "6" })
        memory      = merge(local.properties.memory, { default = "24Gi" })
      })
    })
  })
}

resource "kubernetes_namespace_v1" "this" {
  metadata {
    name = var.namespace
  }
}

resource "kubernetes_secret_v1" "prefect" {
  metadata {
    name      = "prefect"
    namespace = kubernetes_namespace_v1.this.metadata[0].name
  }

  data = {
    "auth-string"  = var.prefect_auth
    "database-url" = var.prefect == null ? "" : var.prefect.database_url
  }
}

# The login of a private registry, for the cluster.
resource "kubernetes_secret_v1" "registry" {
  count = nonsensitive(var.registry_login == null) ? 0 : 1
  type  = "kubernetes.io/dockerconfigjson"

  metadata {
    name      = "registry"
    namespace = kubernetes_namespace_v1.this.metadata[0].name
  }

  data = {
    ".dockerconfigjson" = jsonencode({ auths = { (local.registry) = { auth = base64encode(var.registry_login) } } })
  }
}

resource "kubernetes_service_account_v1" "worker" {
  automount_service_account_token = false

  dynamic "image_pull_secret" {
    for_each = kubernetes_secret_v1.registry[*].metadata[0].name

    content {
      name = image_pull_secret.value
    }
  }

  metadata {
    name        = "plumbline-worker"
    namespace   = kubernetes_namespace_v1.this.metadata[0].name
    annotations = var.service_accounts == null ? {} : { "iam.gke.io/gcp-service-account" = var.service_accounts.worker }
  }
}

# Where the pods of a training on several machines meet (`nodes` of a platform).
resource "kubernetes_service_v1" "nodes" {
  metadata {
    name      = "plumbline-nodes"
    namespace = kubernetes_namespace_v1.this.metadata[0].name
  }

  spec {
    cluster_ip                  = "None"
    selector                    = { app = "plumbline-nodes" }
    publish_not_ready_addresses = true
  }
}

# Google's balancer is the cluster's own, and is gone some minutes after its Ingress: cluster, address and certificate have
# to live as long.
resource "time_sleep" "balancer" {
  count            = local.servers
  destroy_duration = "300s"
  triggers = {
    namespace = kubernetes_namespace_v1.this.metadata[0].name
    address   = try(nonsensitive(var.prefect.address_name), "") # the certificate comes with it
  }
}

resource "helm_release" "balancer" {
  count     = local.servers
  name      = "balancer"
  chart     = "${path.module}/balancer"
  namespace = time_sleep.balancer[0].triggers["namespace"]
}

resource "helm_release" "server" {
  count      = local.servers
  name       = "prefect-server"
  repository = local.charts
  chart      = "prefect-server"
  version    = local.chart_version
  namespace  = kubernetes_namespace_v1.this.metadata[0].name
  depends_on = [helm_release.balancer]

  values = [templatefile("${path.module}/server.yaml", merge(local.values, {
    domain       = var.domain
    address_name = var.prefect.address_name
    certificate  = var.prefect.certificate
  }))]
}

resource "helm_release" "controller" {
  name       = "plumbline-controller"
  repository = local.charts
  chart      = "prefect-worker"
  version    = local.chart_version
  namespace  = kubernetes_namespace_v1.this.metadata[0].name
  depends_on = [helm_release.server]

  values = [templatefile("${path.module}/controller.yaml", merge(local.values, {
    identities      = var.identities
    service_account = var.service_accounts == null ? "" : var.service_accounts.controller
    # The chart joins both by a colon, and a registry's port has one.
    repository = regex("^(.*):", var.images.controller)[0]
    tag        = regex("([^:]*)$", var.images.controller)[0]
  }))]
}

resource "helm_release" "gpu" {
  count      = var.gpu_pool == null ? 0 : 1
  name       = var.gpu_pool.work_pool
  repository = local.charts
  chart      = "prefect-worker"
  version    = local.chart_version
  namespace  = kubernetes_namespace_v1.this.metadata[0].name
  depends_on = [helm_release.server]

  # Encoded twice: the chart takes the template as one string.
  values = [templatefile("${path.module}/gpu.yaml", merge(local.values, {
    work_pool    = var.gpu_pool.work_pool
    job_template = jsonencode(jsonencode(local.job_template))
  }))]
}
