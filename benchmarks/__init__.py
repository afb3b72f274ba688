"""What the server costs, beside its peers and stage by stage; README.md says how to run it."""
