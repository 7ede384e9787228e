"""Predictions on Ray Serve, with autoscaled replicas for encoding and answering."""
