# A network of its own: an account may have no default network, and some organizations delete it.
resource "aws_vpc" "this" {
  cidr_block           = "10.61.0.0/20"
  enable_dns_hostnames = true

  tags = {
    Name = var.name
  }
}

resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
}

# Not every zone of a region has every machine.
data "aws_ec2_instance_type_offerings" "worker" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = [var.machine_type]
  }
}

resource "aws_subnet" "worker" {
  count             = length(data.aws_ec2_instance_type_offerings.worker.locations)
  vpc_id            = aws_vpc.this.id
  cidr_block        = cidrsubnet(aws_vpc.this.cidr_block, 4, count.index)
  availability_zone = sort(data.aws_ec2_instance_type_offerings.worker.locations)[count.index]
}

resource "aws_route_table" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_route" "out" {
  route_table_id         = aws_route_table.this.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "worker" {
  count          = length(aws_subnet.worker)
  subnet_id      = aws_subnet.worker[count.index].id
  route_table_id = aws_route_table.this.id
}
