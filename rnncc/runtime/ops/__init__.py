"""The torch ops of a package: what torch knows of them, and the records that they take."""
