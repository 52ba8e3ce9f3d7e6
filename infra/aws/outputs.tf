output "platform" {
  description = "This platform, as a suite names it."
  value = {
    work_pool   = var.worker.work_pool
    data        = "s3://${aws_s3_bucket.store["data"].bucket}/${var.prefix}"
    outbox      = "s3://${aws_s3_bucket.store["outbox"].bucket}/${var.prefix}"
    accelerator = var.accelerator
    machines    = "aws://${data.aws_region.this.region}/${aws_autoscaling_group.worker.name}"
  }
}

output "controller" {
  description = "Who the controller is on AWS."
  value = {
    aws_region   = data.aws_region.this.region
    aws_role_arn = aws_iam_role.controller.arn
  }
}
