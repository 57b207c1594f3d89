"""Cells that no file ships, each with its equations written out in torch, and the comparison."""
