"""What can be told of equations: bounds, affine maps, kinks, sums, reads of earlier values."""
