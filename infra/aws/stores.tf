# The buckets: data, which workers only read; outbox, where they create records; central, the controller's own.
locals {
  stores = toset(["data", "outbox", "central"])
  documents = {
    prefix             = var.prefix
    data_bucket        = "${var.name}-data"
    outbox_bucket      = "${var.name}-outbox"
    central_bucket     = "${var.name}-central"
    password_parameter = aws_ssm_parameter.secret.arn
  }
}

resource "aws_s3_bucket" "store" {
  for_each = local.stores
  bucket   = "${var.name}-${each.key}"

  force_destroy = !var.deletion_protection
}

resource "aws_s3_bucket_public_access_block" "store" {
  for_each                = local.stores
  bucket                  = aws_s3_bucket.store[each.key].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_versioning" "store" {
  for_each = local.stores
  bucket   = aws_s3_bucket.store[each.key].id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "store" {
  for_each = local.stores
  bucket   = aws_s3_bucket.store[each.key].id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# `plumbline store prune` removes rounds; here only what it cannot see.
resource "aws_s3_bucket_lifecycle_configuration" "store" {
  for_each   = local.stores
  bucket     = aws_s3_bucket.store[each.key].id
  depends_on = [aws_s3_bucket_versioning.store]

  rule {
    id     = "leftovers"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }

    noncurrent_version_expiration {
      noncurrent_days = 30
    }
  }
}

resource "aws_s3_bucket_policy" "outbox" {
  bucket = aws_s3_bucket.store["outbox"].id
  policy = templatefile("${path.module}/outbox-bucket-policy.json", local.documents)
}

resource "aws_s3_bucket_policy" "encrypted" {
  for_each = setsubtract(local.stores, ["outbox"])
  bucket   = aws_s3_bucket.store[each.key].id
  policy   = templatefile("${path.module}/encrypted-bucket-policy.json", { bucket = "${var.name}-${each.key}" })
}
