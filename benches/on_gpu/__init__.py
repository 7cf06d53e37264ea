"""What benches/gpu.py measures, and how."""
