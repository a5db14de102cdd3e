"""What the lab costs, measured: each file here is a paired benchmark that runs by itself."""
