"""Small HTTP servers with S3's, Azure's and Google's objects, and planned faults."""
