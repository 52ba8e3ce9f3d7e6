"""Kubernetes API of a small cluster, whose pods are processes of this machine."""
