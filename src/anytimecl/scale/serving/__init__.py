"""Predictions on Ray Serve: encoders and answering replicas, as many as there is work for."""
