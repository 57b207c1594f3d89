"""What callers give, checked and brought into one form."""
