#!/bin/sh
# What this machine asks AWS with its own role: `secret` prints it, `notice` succeeds if AWS takes the machine back, and
# `off` ends the machine and lowers its group's size.
set -eu
metadata() {
  server=$${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
  token=$(curl -sf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$server/latest/api/token")
  curl -sf -H "X-aws-ec2-metadata-token: $token" "$server/latest/meta-data/$1"
}
case $1 in
  secret) aws ssm get-parameter --region "${region}" --name "${parameter}" --with-decryption --query Parameter.Value --output text ;;
  notice) metadata spot/instance-action > /dev/null ;;
  off) aws autoscaling terminate-instance-in-auto-scaling-group --region "${region}" --should-decrement-desired-capacity --instance-id "$(metadata instance-id)" ;;
esac
