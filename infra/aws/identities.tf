# The worker's role is its machine's, the controller's comes by federation from its cluster: no key exists anywhere.
resource "aws_iam_role" "worker" {
  name               = "${var.name}-worker"
  assume_role_policy = file("${path.module}/trust-ec2.json")
}

resource "aws_iam_role_policy" "worker" {
  name   = "stores"
  role   = aws_iam_role.worker.id
  policy = templatefile("${path.module}/worker-policy.json", merge(local.documents, { machines = aws_autoscaling_group.worker.arn }))
}

resource "aws_iam_instance_profile" "worker" {
  name = "${var.name}-worker"
  role = aws_iam_role.worker.name
}

resource "aws_iam_openid_connect_provider" "controller" {
  url            = "https://${var.issuer}"
  client_id_list = ["sts.amazonaws.com"]
}

resource "aws_iam_role" "controller" {
  name = "${var.name}-controller"
  assume_role_policy = templatefile("${path.module}/trust-federation.json", {
    provider_arn = aws_iam_openid_connect_provider.controller.arn
    issuer       = var.issuer
    subject      = var.controller_subject
  })
}

resource "aws_iam_role_policy" "controller" {
  name   = "stores"
  role   = aws_iam_role.controller.id
  policy = templatefile("${path.module}/controller-policy.json", merge(local.documents, { machines = aws_autoscaling_group.worker.arn }))
}

resource "aws_ssm_parameter" "secret" {
  name  = "/${var.name}/worker"
  type  = "SecureString"
  value = var.secret
}
