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

output "store" {
  description = "A store of the controller's own, where Google Cloud has none."
  value       = "s3://${aws_s3_bucket.store["central"].bucket}/${var.prefix}"
}

output "controller" {
  description = "Who the controller is on AWS, as its SDK reads it."
  value = {
    AWS_REGION                  = data.aws_region.this.region
    AWS_ROLE_ARN                = aws_iam_role.controller.arn
    AWS_WEB_IDENTITY_TOKEN_FILE = "/var/run/secrets/aws/token"
  }
}
