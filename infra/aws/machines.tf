# GPU machines, none of them on but for a round: the controller starts and stops them.
data "aws_region" "this" {}

data "aws_ami" "worker" {
  owners = ["amazon", "self"]

  filter {
    name   = "name"
    values = [var.image]
  }
}

resource "aws_security_group" "worker" {
  name        = "${var.name}-worker"
  description = "No way in; out to the Prefect API, the stores and the registry"
  vpc_id      = aws_vpc.this.id
}

resource "aws_vpc_security_group_egress_rule" "worker" {
  security_group_id = aws_security_group.worker.id
  description       = "HTTPS"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_launch_template" "worker" {
  name_prefix   = "${var.name}-worker-"
  image_id      = data.aws_ami.worker.id
  instance_type = var.machine_type
  user_data = base64encode(templatefile("${path.module}/../cloud-init/worker.yaml", merge(var.worker, {
    machine = templatefile("${path.module}/machine.sh", { region = data.aws_region.this.region, parameter = aws_ssm_parameter.secret.name })
  })))

  # The address leads out alone; a gateway would cost also while no machine is on.
  network_interfaces {
    associate_public_ip_address = true
    security_groups             = [aws_security_group.worker.id]
  }

  dynamic "instance_market_options" {
    for_each = var.spot ? ["spot"] : []

    content {
      market_type = "spot"
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = var.reservation == null ? [] : [var.reservation]

    content {
      capacity_reservation_target {
        capacity_reservation_id = var.reservation
      }
    }
  }

  iam_instance_profile {
    arn = aws_iam_instance_profile.worker.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      volume_size = 150
      volume_type = "gp3"
      encrypted   = true
    }
  }
}

resource "aws_autoscaling_group" "worker" {
  name                = "${var.name}-worker"
  min_size            = 0
  max_size            = var.max_machines
  desired_capacity    = 0
  vpc_zone_identifier = aws_subnet.worker[*].id

  launch_template {
    id      = aws_launch_template.worker.id
    version = aws_launch_template.worker.latest_version
  }

  tag {
    key                 = "Name"
    value               = "${var.name}-worker"
    propagate_at_launch = true
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

# AWS stops what a lost controller left on.
resource "aws_autoscaling_schedule" "off" {
  scheduled_action_name  = "off"
  autoscaling_group_name = aws_autoscaling_group.worker.name
  recurrence             = "0 ${var.off_hour} * * *"
  time_zone              = "Etc/UTC"
  desired_capacity       = 0
  min_size               = 0
  max_size               = var.max_machines
}
