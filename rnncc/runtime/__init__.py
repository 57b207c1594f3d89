"""What a built package carries along: layers, masks and registration. Imports torch and nothing else."""
